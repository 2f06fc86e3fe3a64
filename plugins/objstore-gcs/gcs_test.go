package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

func TestMain(m *testing.M) { cloudtest.Main(m, self) }

// opener opens stores in this process or in a plugin's.
type opener func(t *testing.T, uri string, options map[string]string) objstore.Store

func optionsFor(url string, more ...string) map[string]string {
	o := map[string]string{"endpoint": url}
	for _, kv := range more {
		k, v, _ := strings.Cut(kv, "=")
		maps.Copy(o, map[string]string{k: v})
	}
	return o
}

func mustOpen(t *testing.T, uri string, options map[string]string) objstore.Store {
	t.Helper()
	s, err := open(t.Context(), uri, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// emulator starts fake-gcs-server with what it lacks before it: it composes
// whatever the conditions say and whichever generations are asked for, and
// answers 500 for a source that is not there. GCS keeps them; so does this, by
// looking before it forwards, one composition at a time.
func emulator(t *testing.T, buckets ...string) *cloudtest.Server {
	t.Helper()
	server := cloudtest.GCS(t, buckets...)
	var mu sync.Mutex
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 32}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/compose") {
			mu.Lock()
			defer mu.Unlock()
			if status := composable(client, server.URL, r.URL, body); status != http.StatusOK {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				fmt.Fprintf(w, `{"error":{"code":%d,"message":"of the test"}}`, status)
				return
			}
		}
		out, _ := http.NewRequestWithContext(r.Context(), r.Method, server.URL+r.URL.RequestURI(), bytes.NewReader(body))
		out.Header = r.Header
		resp, err := client.Do(out)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(func() { front.CloseClientConnections(); front.Close(); client.CloseIdleConnections() })
	return &cloudtest.Server{URL: front.URL}
}

// composable is the status that GCS would answer.
func composable(client *http.Client, server string, to *url.URL, body []byte) int {
	generation := func(escaped string) string {
		resp, err := client.Get(server + escaped)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		var object struct{ Generation string }
		_ = json.NewDecoder(resp.Body).Decode(&object)
		return object.Generation
	}
	target := strings.TrimSuffix(to.EscapedPath(), "/compose")
	if to.Query().Get("ifGenerationMatch") == "0" && generation(target) != "" {
		return http.StatusPreconditionFailed
	}
	var request struct {
		SourceObjects []struct {
			Name       string
			Generation string
		}
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return http.StatusBadRequest
	}
	objects := target[:strings.Index(target, "/o/")+3]
	for _, s := range request.SourceObjects {
		if is := generation(objects + url.PathEscape(s.Name)); is == "" || s.Generation != "" && s.Generation != is {
			return http.StatusNotFound
		}
	}
	return http.StatusOK
}

func conformance(t *testing.T, open opener) {
	server := emulator(t, "kit")
	n := 0
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		n++
		return open(t, fmt.Sprintf("gs://kit/check/%d", n), optionsFor(server.URL))
	})
}

func TestConformance(t *testing.T)        { conformance(t, mustOpen) }
func TestProcessConformance(t *testing.T) { conformance(t, cloudtest.Launch(t, self)) }

func TestFaults(t *testing.T)        { faults(t, mustOpen) }
func TestProcessFaults(t *testing.T) { faults(t, cloudtest.Launch(t, self)) }

// answer is an error as the JSON API writes it.
func answer(status int, reason string, headers ...string) cloudtest.Action {
	return cloudtest.Answer(status, fmt.Sprintf(`{"error":{"code":%d,"message":"of the test","errors":[{"domain":"usageLimits","reason":%q,"message":"of the test"}]}}`, status, reason),
		append(headers, "Content-Type: application/json")...)
}

func faults(t *testing.T, open opener) {
	proxy := cloudtest.NewProxy(t, emulator(t, "faults"))
	n := 0
	cloudtest.Faults{
		Proxy: proxy,
		Open: func(t *testing.T) objstore.Store {
			n++
			return open(t, fmt.Sprintf("gs://faults/%d", n), optionsFor(proxy.URL, "stall_timeout="+cloudtest.StallTimeout.String()))
		},
		IsPut: func(r cloudtest.Request) bool {
			return r.Method == http.MethodPost && (strings.HasPrefix(r.Path, "/upload/") || strings.HasSuffix(r.Path, "/compose"))
		},
		Throttle: answer(http.StatusTooManyRequests, "rateLimitExceeded", "Retry-After: 1"),
		Broken:   answer(http.StatusServiceUnavailable, "backendError"),
		Resumes:  true,
	}.Run(t)
}

func TestSizesAndPages(t *testing.T) {
	server := emulator(t, "sizes")
	process := cloudtest.Launch(t, self)
	cloudtest.CheckSizes(t, mustOpen(t, "gs://sizes/a", optionsFor(server.URL)))
	cloudtest.CheckSizes(t, process(t, "gs://sizes/c", optionsFor(server.URL)))
	cloudtest.CheckPages(t, process(t, "gs://sizes/b", optionsFor(server.URL)))
}

// TestManyParts composes in two levels, and leaves nothing behind.
func TestManyParts(t *testing.T) {
	server := emulator(t, "parts")
	s := mustOpen(t, "gs://parts", optionsFor(server.URL))
	parts, _ := objstore.Multipart(s)
	id, err := parts.StartUpload(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	var done []objstore.Part
	for i := range 2*composeMax + 3 {
		chunk := []byte(fmt.Sprintf("part %d;", i))
		p, err := parts.PutPart(t.Context(), objstore.PutPartRequest{Key: "k", Upload: id, Number: 10 * (i + 1), Chunks: [][]byte{chunk}})
		if err != nil {
			t.Fatal(err)
		}
		want, done = append(want, chunk...), append(done, p)
	}
	if _, err := parts.CompleteUpload(t.Context(), objstore.CompleteUploadRequest{Key: "k", Upload: id, Parts: done, CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: -1})
	if err != nil || !bytes.Equal(got.Data, want) {
		t.Fatalf("%d bytes of %d, %v", len(got.Data), len(want), err)
	}
	cfg, _ := readConfig("gs://parts", optionsFor(server.URL))
	client, web, err := cfg.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	left, _, err := (&service{cfg: cfg, client: client, bucket: client.Bucket("parts")}).List(t.Context(), pageOfAll)
	if err != nil || len(left) != 1 {
		t.Fatalf("the bucket has %d objects: %+v, %v", len(left), left, err)
	}
}

var pageOfAll = cloudstore.Page{Limit: 1000}
