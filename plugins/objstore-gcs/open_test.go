package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/objstore"
)

// TestOpenRefuses: a store that cannot work is refused at once, with the cause and
// what to do.
func TestOpenRefuses(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	server := cloudtest.GCS(t, "there")
	proxy := cloudtest.NewProxy(t, server)
	noKey := filepath.Join(t.TempDir(), "no.json")
	if err := os.WriteFile(noKey, []byte(`{"client_id":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`)
	}))
	defer refusing.Close()
	for name, c := range map[string]struct {
		uri     string
		options map[string]string
		spoil   cloudtest.Action
		is      error
		says    string
	}{
		"no bucket":      {"gs://absent/x", optionsFor(server.URL), nil, objstore.ErrUnavailable, "create it"},
		"denied":         {"gs://there", optionsFor(proxy.URL), answer(http.StatusForbidden, "forbidden"), objstore.ErrUnauthorized, "roles/storage.objectUser"},
		"who":            {"gs://there", optionsFor(proxy.URL), answer(http.StatusUnauthorized, "required"), objstore.ErrUnauthorized, "GOOGLE_APPLICATION_CREDENTIALS"},
		"nobody there":   {"gs://there", optionsFor("http://127.0.0.1:1"), nil, objstore.ErrUnavailable, "connection refused"},
		"no file":        {"gs://there", map[string]string{"credentials_file": "/absent.json"}, nil, objstore.ErrInvalid, "/absent.json"},
		"no key file":    {"gs://there", map[string]string{"credentials_file": noKey}, nil, objstore.ErrInvalid, "it has no type"},
		"refused key":    {"gs://there", optionsFor(server.URL, "credentials_file="+keyFile(t, refusing.URL)), nil, objstore.ErrUnauthorized, "Google refuses these credentials"},
		"no identity":    {"gs://there", optionsFor(server.URL, "credentials_file="+keyFile(t, "http://127.0.0.1:1")), nil, objstore.ErrUnavailable, "connection refused"},
		"bad kms key":    {"gs://there", map[string]string{"kms_key": "k"}, nil, objstore.ErrInvalid, "cryptoKeys"},
		"both":           {"gs://there", map[string]string{"anonymous": "true", "credentials_file": "x"}, nil, objstore.ErrInvalid, "exclude"},
		"other scheme":   {"s3://there", nil, nil, objstore.ErrInvalid, uriForm},
		"option in URI":  {"gs://there/x?endpoint=a", nil, nil, objstore.ErrInvalid, "by name"},
		"too few trials": {"gs://there", map[string]string{"attempts": "none"}, nil, objstore.ErrInvalid, "attempts"},
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
		})
	}
}

// keyFile writes a service account's key whose tokens come from a URL.
func keyFile(t *testing.T, tokens string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "p", "private_key_id": "1", "client_email": "mink@p.iam.gserviceaccount.com",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": tokens,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTokens plays the identity services, as documented, and checks that every
// request carries the token that they gave. Not run against the cloud.
func TestTokens(t *testing.T) {
	var asked atomic.Int64
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token": // a service account's: a signed assertion is exchanged
			asked.Add(1)
			if r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || strings.Count(r.FormValue("assertion"), ".") != 2 {
				t.Errorf("token request: %v", r.Form)
			}
		case strings.HasSuffix(r.URL.Path, "/service-accounts/default/token"): // the machine's, and GKE's workload identity
			asked.Add(1)
			if r.Header.Get("Metadata-Flavor") != "Google" {
				t.Errorf("metadata request: %v", r.Header)
			}
		default:
			w.Header().Set("Metadata-Flavor", "Google")
			fmt.Fprint(w, "p")
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"token-1","token_type":"Bearer","expires_in":3600}`)
	}))
	defer identity.Close()
	proxy := cloudtest.NewProxy(t, cloudtest.GCS(t, "there"))
	for name, options := range map[string]map[string]string{
		"service account": optionsFor(proxy.URL, "credentials_file="+keyFile(t, identity.URL+"/token")),
		"machine":         optionsFor(proxy.URL, "anonymous=false"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
			t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(identity.URL, "http://"))
			asked.Store(0)
			proxy.Take()
			s := mustOpen(t, "gs://there/x", options)
			if _, err := s.Put(t.Context(), objstore.PutRequest{Key: name, CreateOnly: true}); err != nil {
				t.Fatal(err)
			}
			requests := proxy.Take()
			for _, r := range requests {
				if got := r.Header.Get("Authorization"); got != "Bearer token-1" {
					t.Errorf("%s %s: Authorization is %q", r.Method, r.Path, got)
				}
			}
			if len(requests) < 2 || asked.Load() != 1 {
				t.Errorf("%d requests with %d tokens", len(requests), asked.Load())
			}
		})
	}
}

// TestRequest checks a put's query: its condition, its key.
func TestRequest(t *testing.T) {
	proxy := cloudtest.NewProxy(t, cloudtest.GCS(t, "there"))
	const key = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
	s := mustOpen(t, "gs://there/x", optionsFor(proxy.URL, "quota_project=payer", "kms_key="+key))
	proxy.Take()
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	q := proxy.Take()[0].Query
	for _, want := range []string{"ifGenerationMatch=0", "kmsKeyName=" + strings.ReplaceAll(key, "/", "%2F"), "userProject=payer", "uploadType=multipart"} {
		if !strings.Contains(q, want) {
			t.Errorf("the query %s lacks %s", q, want)
		}
	}
}

// TestWriteInProgress: the service answers 409 while another write of the object
// goes on. Only for a create-only put does an object that is there decide it.
func TestWriteInProgress(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"error":{"code":409,"message":"conflict","errors":[{"reason":"conflict"}]}}`)
		case strings.HasSuffix(r.URL.Path, "/o"):
			fmt.Fprint(w, `{"kind":"storage#objects"}`)
		default:
			fmt.Fprint(w, `{"name":"k","bucket":"there","generation":"5","size":"1"}`)
		}
	}))
	defer server.Close()
	s := mustOpen(t, "gs://there", optionsFor(server.URL))
	for name, c := range map[string]struct {
		req  objstore.PutRequest
		want error
	}{
		"create":  {objstore.PutRequest{Key: "k", CreateOnly: true}, objstore.ErrAlreadyExists},
		"swap":    {objstore.PutRequest{Key: "k", IfMatch: "5"}, objstore.ErrConflict},
		"replace": {objstore.PutRequest{Key: "k"}, objstore.ErrUnavailable},
	} {
		_, err := s.Put(t.Context(), c.req)
		if !errors.Is(err, c.want) || errors.Is(err, objstore.ErrUnknownOutcome) || !errors.Is(c.want, objstore.ErrAlreadyExists) && errors.Is(err, objstore.ErrAlreadyExists) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestUnknownOption(t *testing.T) {
	_, err := self.Manifest().Resolve(map[string]string{"credential_file": "x"})
	if err == nil || !strings.Contains(err.Error(), "did you mean credentials_file?") {
		t.Fatal(err)
	}
	if err := self.Manifest().Validate(); err != nil {
		t.Error(err)
	}
}

func TestManual(t *testing.T) { cloudtest.CheckManual(t, self) }
