package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/httptransport"
	"cloud.google.com/go/storage"
	"google.golang.org/api/option"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

const uriForm = "gs://BUCKET/PREFIX"

// options are what the node's configuration, docs/plugins.md and --describe show.
var options = append([]plugin.Option{
	{Name: "credentials_file", Doc: "JSON file of a service account, an external account or a user; without it application default credentials: GOOGLE_APPLICATION_CREDENTIALS, gcloud's file, the machine's service account"},
	{Name: "endpoint", Doc: "URL of an emulator or a private endpoint; without it STORAGE_EMULATOR_HOST, then Google's"},
	{Name: "anonymous", Doc: "true: no credentials; as if true with an http endpoint"},
	{Name: "quota_project", Doc: "project that requests are charged to, for buckets where the requester pays"},
	{Name: "kms_key", Doc: "Cloud KMS key for new objects, projects/P/locations/L/keyRings/R/cryptoKeys/K; none for the bucket's default"},
	{Name: "storage_class", Doc: "storage class of new objects; none for the bucket's default"},
}, cloudstore.LimitOptions...)

// config is the URI and the options, read and checked.
type config struct {
	bucket, prefix  string
	credentialsFile string   // "": application default credentials
	endpoint        *url.URL // nil: Google's
	anonymous       bool
	quotaProject    string
	kmsKey          string
	storageClass    string
	limits          cloudstore.Limits
}

// readConfig checks the URI and the options; ErrInvalid names all that is wrong.
func readConfig(uri string, options map[string]string) (config, error) {
	where, err := cloudstore.ParseURI(uri, uriForm, "gs")
	if err != nil {
		return config{}, err
	}
	o := cloudstore.NewOptions(options)
	c := config{
		bucket: where.Host, prefix: where.Path,
		credentialsFile: o.Text("credentials_file"), endpoint: o.Endpoint("endpoint"),
		quotaProject: o.Text("quota_project"), kmsKey: o.Text("kms_key"), storageClass: o.Text("storage_class"),
		limits: o.Limits(),
	}
	if emulator := os.Getenv("STORAGE_EMULATOR_HOST"); emulator != "" && o.Text("endpoint") == "" {
		if !strings.Contains(emulator, "://") {
			emulator = "http://" + emulator
		}
		if c.endpoint, err = url.Parse(emulator); err != nil {
			o.Refuse("STORAGE_EMULATOR_HOST: %v", err)
		}
	}
	c.anonymous = o.Flag("anonymous", c.endpoint != nil && c.endpoint.Scheme == "http")
	if o.Text("anonymous") != "" && c.anonymous && c.credentialsFile != "" {
		o.Refuse("anonymous and credentials_file exclude each other")
	}
	if c.credentialsFile != "" {
		c.anonymous = false
	}
	if c.kmsKey != "" && (!strings.HasPrefix(c.kmsKey, "projects/") || !strings.Contains(c.kmsKey, "/cryptoKeys/")) {
		o.Refuse("option kms_key: want projects/P/locations/L/keyRings/R/cryptoKeys/K")
	}
	return c, o.Err()
}

// credentials finds who we are; nil for nobody.
func (c config) credentials() (*auth.Credentials, error) {
	if c.anonymous {
		return nil, nil
	}
	opts := &credentials.DetectOptions{Scopes: []string{storage.ScopeReadWrite}}
	if c.credentialsFile == "" {
		found, err := credentials.DetectDefault(opts)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", objstore.ErrUnauthorized, adviceNoCredentials, err)
		}
		return found, nil
	}
	data, err := os.ReadFile(c.credentialsFile)
	if err != nil {
		return nil, fmt.Errorf("%w: option credentials_file: %w", objstore.ErrInvalid, err)
	}
	var kind struct {
		Type credentials.CredType `json:"type"`
	}
	if err := json.Unmarshal(data, &kind); err != nil || kind.Type == "" {
		return nil, fmt.Errorf("%w: option credentials_file: %s is no key file of Google's: it has no type", objstore.ErrInvalid, c.credentialsFile)
	}
	found, err := credentials.NewCredentialsFromJSON(kind.Type, data, opts)
	if err != nil {
		return nil, fmt.Errorf("%w: option credentials_file: %s: %w", objstore.ErrInvalid, c.credentialsFile, err)
	}
	return found, nil
}

// client builds the library's client on the shared HTTP client. Its own retries
// are off: cloudstore decides what may be sent twice.
func (c config) client(ctx context.Context) (*storage.Client, *cloudstore.Client, error) {
	creds, err := c.credentials()
	if err != nil {
		return nil, nil, err
	}
	web, err := cloudstore.NewClient(c.limits,
		func(rt http.RoundTripper) (http.RoundTripper, error) {
			if creds == nil {
				return rt, nil
			}
			client := &http.Client{Transport: rt}
			err := httptransport.AddAuthorizationMiddleware(client, creds)
			return client.Transport, err
		})
	if err != nil {
		return nil, nil, err
	}
	opts := []option.ClientOption{option.WithHTTPClient(web.HTTP()), option.WithoutAuthentication(), storage.WithJSONReads(), storage.WithDisabledClientMetrics()}
	if c.endpoint != nil {
		opts = append(opts, option.WithEndpoint(strings.TrimSuffix(c.endpoint.String(), "/")+"/storage/v1/"))
	}
	client, err := storage.NewClient(ctx, opts...)
	if err != nil {
		web.Close()
		return nil, nil, fmt.Errorf("%w: %w", objstore.ErrInvalid, err)
	}
	client.SetRetry(storage.WithPolicy(storage.RetryNever))
	return client, web, nil
}
