package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// TestOpenRefuses: a store that cannot work is refused at once, with the cause and
// what to do. Azurite answers AuthorizationFailure to a wrong signature where Azure
// answers AuthenticationFailed: the advice of both names the key.
func TestOpenRefuses(t *testing.T) {
	server := azurite(t, "there")
	proxy := cloudtest.NewProxy(t, server)
	uri := "az://" + account + "/there"
	wrongKey := base64.StdEncoding.EncodeToString([]byte("another key"))
	for name, c := range map[string]struct {
		uri     string
		options map[string]string
		spoil   cloudtest.Action
		is      error
		says    string
	}{
		"no container":  {"az://" + account + "/absent/x", optionsFor(server.URL), nil, objstore.ErrUnavailable, "create it"},
		"wrong key":     {uri, optionsFor(server.URL, "account_key="+wrongKey), nil, objstore.ErrUnauthorized, "check account_key or sas_token"},
		"no key":        {uri, optionsFor(server.URL, "account_key=%%%"), nil, objstore.ErrInvalid, "account_key"},
		"wrong SAS":     {uri, optionsFor(server.URL, "account_key=", "sas_token=?sv=2024-08-04&ss=b&srt=sco&sp=rl&se=2099-01-01T00:00:00Z&sig=c2VjcmV0c2ln"), nil, objstore.ErrUnauthorized, "check account_key or sas_token"},
		"no role":       {uri, optionsFor(proxy.URL), answer(http.StatusForbidden, "AuthorizationPermissionMismatch"), objstore.ErrUnauthorized, "Storage Blob Data Contributor"},
		"signature":     {uri, optionsFor(proxy.URL), answer(http.StatusForbidden, "AuthenticationFailed"), objstore.ErrUnauthorized, "check account_key or sas_token"},
		"firewall":      {uri, optionsFor(proxy.URL), answer(http.StatusForbidden, "AuthorizationFailure"), objstore.ErrUnauthorized, "firewall"},
		"keys are off":  {uri, optionsFor(proxy.URL), answer(http.StatusForbidden, "KeyBasedAuthenticationNotPermitted"), objstore.ErrUnauthorized, "Microsoft Entra"},
		"nobody there":  {uri, optionsFor("http://127.0.0.1:1"), nil, objstore.ErrUnavailable, "connection refused"},
		"other account": {"az://elsewhere/there", map[string]string{"connection_string": connectionString(server.URL)}, nil, objstore.ErrInvalid, "the URI names elsewhere"},
		"bad string":    {uri, map[string]string{"connection_string": "foobar"}, nil, objstore.ErrInvalid, "connection_string"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.spoil != nil {
				proxy.Spoil(cloudtest.Rule{Times: 1, Do: c.spoil})
			}
			s, err := open(t.Context(), c.uri, c.options)
			if err == nil {
				_ = s.Close()
				t.Fatal("it opened")
			}
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v\nis not %v, or does not say %q", err, c.is, c.says)
			}
			for _, secret := range []string{wrongKey, cloudtest.AzureKey, "c2VjcmV0c2ln"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%v\nshows a secret", err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %v", err)
			}
		})
	}
}

func connectionString(server string) string {
	return "DefaultEndpointsProtocol=http;AccountName=" + account + ";AccountKey=" + cloudtest.AzureKey + ";BlobEndpoint=" + server + "/" + account + ";"
}

// TestWaysIn opens with each kind of secret and does what Mink does.
func TestWaysIn(t *testing.T) {
	server := azurite(t, "there")
	key, err := container.NewSharedKeyCredential(account, cloudtest.AzureKey)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := sas.BlobSignatureValues{
		Protocol: sas.ProtocolHTTPSandHTTP, ExpiryTime: time.Now().Add(time.Hour), ContainerName: "there",
		Permissions: to.Ptr(sas.ContainerPermissions{Read: true, Add: true, Create: true, Write: true, Delete: true, List: true}).String(),
	}.SignWithSharedKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string]map[string]string{
		"shared key":        optionsFor(server.URL),
		"connection string": {"connection_string": connectionString(server.URL)},
		"SAS":               optionsFor(server.URL, "account_key=", "sas_token="+signature.Encode()),
	} {
		t.Run(name, func(t *testing.T) {
			s := mustOpen(t, "az://"+account+"/there/"+url.PathEscape(name), options)
			if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{[]byte("value")}, CreateOnly: true}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", CreateOnly: true}); !errors.Is(err, objstore.ErrAlreadyExists) {
				t.Fatal(err)
			}
			page, err := s.List(t.Context(), objstore.ListRequest{})
			if err != nil || len(page.Objects) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			if resp, err := s.DeleteBatch(t.Context(), []string{"k"}); err != nil || resp.Errors[0] != nil {
				t.Fatal(err, resp)
			}
		})
	}
}

// transport answers requests for tokens as the identity services document it.
type transport func(*http.Request) (int, string)

func (f transport) Do(r *http.Request) (*http.Response, error) {
	status, body := f(r)
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

const tokenAnswer = `{"access_token":"token-1","expires_in":"3600","expires_on":"4102444800","resource":"https://storage.azure.com/","token_type":"Bearer"}`

// TestIdentities plays the machine's identity service and Microsoft Entra, as
// documented, and checks that requests carry the token. Not run against the cloud.
func TestIdentities(t *testing.T) {
	var asked atomic.Int64
	assertion := filepath.Join(t.TempDir(), "assertion")
	if err := os.WriteFile(assertion, []byte("signed by kubernetes"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", assertion)
	for _, name := range []string{"IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET", "IMDS_ENDPOINT"} {
		t.Setenv(name, "")
		_ = os.Unsetenv(name)
	}
	for name, c := range map[string]struct {
		options map[string]string
		play    transport
	}{
		"managed identity": {map[string]string{"credential": "managed_identity", "client_id": "app-1"}, func(r *http.Request) (int, string) {
			q := r.URL.Query()
			if r.URL.Host != "169.254.169.254" || r.URL.Path != "/metadata/identity/oauth2/token" || r.Header.Get("Metadata") != "true" ||
				!strings.HasPrefix(q.Get("resource"), "https://storage.azure.com") || q.Get("client_id") != "app-1" {
				t.Errorf("%s %v", r.URL, r.Header)
			}
			asked.Add(1)
			return http.StatusOK, tokenAnswer
		}},
		"workload identity": {map[string]string{"credential": "workload_identity", "client_id": "app-1", "tenant_id": "tenant-1"}, func(r *http.Request) (int, string) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/discovery/instance"):
				return http.StatusOK, `{"tenant_discovery_endpoint":"https://login.microsoftonline.com/tenant-1/v2.0/.well-known/openid-configuration","api-version":"1.1","metadata":[{"preferred_network":"login.microsoftonline.com","preferred_cache":"login.windows.net","aliases":["login.microsoftonline.com","login.windows.net"]}]}`
			case strings.HasSuffix(r.URL.Path, "/openid-configuration"):
				return http.StatusOK, `{"token_endpoint":"https://login.microsoftonline.com/tenant-1/oauth2/v2.0/token","authorization_endpoint":"https://login.microsoftonline.com/tenant-1/oauth2/v2.0/authorize","issuer":"https://login.microsoftonline.com/tenant-1/v2.0"}`
			}
			body, _ := io.ReadAll(r.Body)
			form, _ := url.ParseQuery(string(body))
			if r.URL.Path != "/tenant-1/oauth2/v2.0/token" || form.Get("client_assertion") != "signed by kubernetes" || form.Get("client_id") != "app-1" ||
				form.Get("grant_type") != "client_credentials" || !strings.Contains(form.Get("scope"), "https://storage.azure.com/.default") {
				t.Errorf("%s %v", r.URL, form)
			}
			asked.Add(1)
			return http.StatusOK, `{"access_token":"token-1","expires_in":3600,"token_type":"Bearer"}`
		}},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			var requests atomic.Int64
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if got := r.Header.Get("Authorization"); got != "Bearer token-1" {
					t.Errorf("%s %s: Authorization is %q", r.Method, r.URL, got)
				}
				w.WriteHeader(http.StatusCreated)
			}))
			defer server.Close()
			c.options["endpoint"] = server.URL
			cfg, err := readConfig("az://acc/there", c.options)
			if err != nil {
				t.Fatal(err)
			}
			client, err := cfg.client(server.Client(), c.play)
			if err != nil {
				t.Fatal(err)
			}
			s := &service{cfg: cfg, container: client}
			for range 2 {
				if _, err := s.Put(t.Context(), cloudstore.Write{Name: "k", CreateOnly: true}); err != nil {
					t.Fatal(err)
				}
			}
			if requests.Load() != 2 || asked.Load() != 1 {
				t.Errorf("%d requests with %d tokens", requests.Load(), asked.Load())
			}
		})
	}
	refusing := transport(func(*http.Request) (int, string) {
		return http.StatusBadRequest, `{"error":"invalid_request","error_description":"Identity not found"}`
	})
	cfg, _ := readConfig("az://acc/there", map[string]string{"credential": "managed_identity"})
	client, err := cfg.client(http.DefaultClient, refusing)
	if err != nil {
		t.Fatal(err)
	}
	s := cloudstore.New(&service{cfg: cfg, container: client, web: &cloudstore.Client{}}, "", cloudstore.Limits{})
	if err := s.Check(t.Context()); !errors.Is(err, objstore.ErrUnauthorized) {
		t.Errorf("a machine without an identity: %v", err)
	}
}

// TestPutRequest checks a put's headers; the checksum is compared with the
// library's own.
func TestPutRequest(t *testing.T) {
	proxy := cloudtest.NewProxy(t, azurite(t, "there"))
	options := optionsFor(proxy.URL, "access_tier=Cool")
	s := mustOpen(t, "az://"+account+"/there/x", options)
	proxy.Take()
	value := []byte("123456789")
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{value[:4], value[4:]}, CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	ours := proxy.Take()[0].Header
	if ours.Get("If-None-Match") != "*" || ours.Get("X-Ms-Access-Tier") != "Cool" {
		t.Error(ours)
	}
	cfg, _ := readConfig("az://"+account+"/there", options)
	client, err := cfg.client(http.DefaultClient, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.NewBlockBlobClient("y").Upload(t.Context(), cloudstore.NewChunks([][]byte{bytes.Clone(value)}),
		&blockblob.UploadOptions{TransactionalValidation: blob.TransferValidationTypeComputeCRC64()})
	if err != nil {
		t.Fatal(err)
	}
	theirs := proxy.Take()[0].Header
	if got, want := ours.Get("X-Ms-Content-Crc64"), theirs.Get("X-Ms-Content-Crc64"); got != want || got == "" {
		t.Errorf("checksum %q, the library's is %q", got, want)
	}
}

func TestURIs(t *testing.T) {
	for uri, want := range map[string]string{
		"az://acc/box":                                "acc box  https://acc.blob.core.windows.net",
		"az://acc/box/a/b/":                           "acc box a/b https://acc.blob.core.windows.net",
		"abfss://box@acc.dfs.core.windows.net/a":      "acc box a https://acc.blob.core.windows.net",
		"abfs://box@acc.dfs.core.usgovcloudapi.net/a": "acc box a https://acc.blob.core.usgovcloudapi.net",
		"abfss://box@acc.blob.core.windows.net":       "acc box  https://acc.blob.core.windows.net",
		"az://acc":                                    "",
		"az:///box":                                   "",
		"abfss://acc/box":                             "",
		"abfss://box@acc/x":                           "",
		"az://box@acc/x":                              "",
		"az://acc/box?sig=x":                          "",
		"https://acc.blob.core.windows.net/box":       "",
		"az://acc/box/" + strings.Repeat("long/", 30): "",
	} {
		c, err := readConfig(uri, nil)
		if want == "" {
			if !errors.Is(err, objstore.ErrInvalid) {
				t.Errorf("%s: %v", uri, err)
			}
			continue
		}
		if got := fmt.Sprint(c.account, " ", c.container, " ", c.prefix, " ", c.endpoint); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", uri, got, err, want)
		}
	}
	for _, c := range []struct {
		options map[string]string
		says    string
	}{
		{map[string]string{"account_key": "a", "sas_token": "b"}, "give one"},
		{map[string]string{"credential": "password"}, "managed_identity"},
		{map[string]string{"client_id": "a"}, "client_id needs"},
		{map[string]string{"tenant_id": "a"}, "tenant_id needs"},
		{map[string]string{"access_tier": "Lukewarm"}, "Hot"},
		{map[string]string{"endpoint": "acc.blob"}, "endpoint"},
	} {
		if _, err := readConfig("az://acc/box", c.options); !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v; want it to say %q", c.options, err, c.says)
		}
	}
	if _, err := self.Manifest().Resolve(map[string]string{"acount_key": "x"}); err == nil || !strings.Contains(err.Error(), "did you mean account_key?") {
		t.Error(err)
	}
	if err := self.Manifest().Validate(); err != nil {
		t.Error(err)
	}
}

func TestManual(t *testing.T) { cloudtest.CheckManual(t, self) }
