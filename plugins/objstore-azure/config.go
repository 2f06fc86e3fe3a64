package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

const uriForm = "az://ACCOUNT/CONTAINER/PREFIX or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"

// options are what the node's configuration, docs/plugins.md and --describe show.
var options = append([]plugin.Option{
	{Name: "connection_string", Doc: "connection string of the account, with a key or a shared access signature in it", Secret: true},
	{Name: "account_key", Doc: "shared key of the account", Secret: true},
	{Name: "sas_token", Doc: "shared access signature of the account or the container", Secret: true},
	{Name: "credential", Doc: "Microsoft Entra credential when no key is given: default (environment, workload identity, managed identity, Azure CLI), managed_identity or workload_identity; default when empty"},
	{Name: "client_id", Doc: "application of a user-assigned managed identity or of a workload identity"},
	{Name: "tenant_id", Doc: "tenant of a workload identity; without it AZURE_TENANT_ID"},
	{Name: "endpoint", Doc: "URL of the account's blob service, for other clouds, private endpoints and emulators; without it https://ACCOUNT.blob.core.windows.net"},
	{Name: "access_tier", Doc: "tier of new objects, such as Hot or Cool; none for the account's default"},
}, cloudstore.LimitOptions...)

// config is the URI and the options, read and checked.
type config struct {
	account, container, prefix string
	endpoint                   *url.URL // of the account
	custom                     bool     // endpoint was configured
	connectionString           string
	accountKey, sas            string
	credential                 string // "": default
	clientID, tenantID         string
	accessTier                 string
	limits                     cloudstore.Limits
}

// readConfig checks the URI and the options; ErrInvalid names all that is wrong.
func readConfig(uri string, options map[string]string) (config, error) {
	o := cloudstore.NewOptions(options)
	c := config{
		endpoint: o.Endpoint("endpoint"), connectionString: o.Text("connection_string"),
		accountKey: o.Text("account_key"), sas: strings.TrimPrefix(o.Text("sas_token"), "?"),
		credential: o.Word("credential", "default", "managed_identity", "workload_identity"),
		clientID:   o.Text("client_id"), tenantID: o.Text("tenant_id"),
		accessTier: o.Word("access_tier", "Hot", "Cool", "Cold"),
		limits:     o.Limits(),
	}
	c.custom = c.endpoint != nil
	if err := c.locate(uri); err != nil {
		return config{}, err
	}
	ways := 0
	for _, way := range []string{c.connectionString, c.accountKey, c.sas, c.credential} {
		if way != "" {
			ways++
		}
	}
	if ways > 1 {
		o.Refuse("connection_string, account_key, sas_token and credential are ways to say who you are: give one")
	}
	if c.clientID != "" && c.credential != "managed_identity" && c.credential != "workload_identity" {
		o.Refuse("client_id needs credential = managed_identity or workload_identity")
	}
	if c.tenantID != "" && c.credential != "workload_identity" {
		o.Refuse("tenant_id needs credential = workload_identity")
	}
	return c, o.Err()
}

// locate reads the URI in both of its forms.
func (c *config) locate(uri string) error {
	where, err := cloudstore.ParseURI(uri, uriForm, "az", "abfs", "abfss")
	if err != nil {
		return err
	}
	host := ""
	if where.Scheme == "az" {
		c.account = where.Host
		c.container, c.prefix, _ = strings.Cut(where.Path, "/")
		host = c.account + ".blob.core.windows.net"
	} else {
		var ok bool
		c.prefix = where.Path
		c.container, host, ok = strings.Cut(where.Host, "@")
		service := ""
		c.account, service, _ = strings.Cut(host, ".")
		suffix, found := strings.CutPrefix(service, "dfs.")
		if !found {
			suffix, found = strings.CutPrefix(service, "blob.")
		}
		if !ok || !found {
			return fmt.Errorf("%w: want a URI such as %s", objstore.ErrInvalid, uriForm)
		}
		host = c.account + ".blob." + suffix
	}
	if c.account == "" || c.container == "" || strings.Contains(c.account, "@") {
		return fmt.Errorf("%w: want a URI such as %s", objstore.ErrInvalid, uriForm)
	}
	if c.endpoint == nil {
		c.endpoint = &url.URL{Scheme: "https", Host: host}
	}
	return nil
}

// client builds the library's client on a transport. Its own retries are off:
// cloudstore decides what may be sent twice. identity is for the requests for
// tokens; nil: the library's own.
func (c config) client(web, identity policy.Transporter) (*container.Client, error) {
	opts := &container.ClientOptions{ClientOptions: policy.ClientOptions{
		Transport: web, Retry: policy.RetryOptions{MaxRetries: -1}, Telemetry: policy.TelemetryOptions{ApplicationID: "mink"},
	}}
	address := strings.TrimSuffix(c.endpoint.String(), "/") + "/" + url.PathEscape(c.container)
	switch {
	case c.connectionString != "":
		if name := setting(c.connectionString, "AccountName"); name != "" && name != c.account {
			return nil, fmt.Errorf("%w: connection_string is of the account %s, the URI names %s", objstore.ErrInvalid, name, c.account)
		}
		client, err := container.NewClientFromConnectionString(c.connectionString, c.container, opts)
		return client, invalid("connection_string", err)
	case c.accountKey != "":
		key, err := container.NewSharedKeyCredential(c.account, c.accountKey)
		if err != nil {
			return nil, invalid("account_key", err)
		}
		return container.NewClientWithSharedKeyCredential(address, key, opts)
	case c.sas != "":
		return container.NewClientWithNoCredential(address+"?"+c.sas, opts)
	}
	token, err := c.token(identity)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", objstore.ErrUnauthorized, adviceNoCredentials, err)
	}
	return container.NewClient(address, token, opts)
}

func (c config) token(transport policy.Transporter) (azcore.TokenCredential, error) {
	opts := policy.ClientOptions{Transport: transport}
	switch c.credential {
	case "managed_identity":
		mi := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: opts}
		if c.clientID != "" {
			mi.ID = azidentity.ClientID(c.clientID)
		}
		return azidentity.NewManagedIdentityCredential(mi)
	case "workload_identity":
		return azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{ClientOptions: opts, ClientID: c.clientID, TenantID: c.tenantID})
	}
	return azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: opts})
}

// setting is one of a connection string's.
func setting(s, name string) string {
	for part := range strings.SplitSeq(s, ";") {
		if k, v, ok := strings.Cut(part, "="); ok && strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

// invalid hides what the library says of a secret that it cannot read.
func invalid(option string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: option %s is not what the Azure portal shows as such", objstore.ErrInvalid, option)
}
