package main

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

func TestMain(m *testing.M) { cloudtest.Main(m, self) }

// opener opens stores in this process or in a plugin's.
type opener func(t *testing.T, uri string, options map[string]string) objstore.Store

const account = cloudtest.AzureAccount

func optionsFor(url string, more ...string) map[string]string {
	o := map[string]string{"endpoint": url + "/" + account, "account_key": cloudtest.AzureKey}
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

// azurite starts the server with a container in it.
func azurite(t *testing.T, name string) *cloudtest.Server {
	t.Helper()
	server := cloudtest.Azure(t)
	cfg, err := readConfig("az://"+account+"/"+name, optionsFor(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	client, err := cfg.client(http.DefaultClient, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return server
}

func conformance(t *testing.T, open opener) {
	server := azurite(t, "kit")
	n := 0
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		n++
		return open(t, fmt.Sprintf("az://%s/kit/check/%d", account, n), optionsFor(server.URL))
	})
}

func TestConformance(t *testing.T)        { conformance(t, mustOpen) }
func TestProcessConformance(t *testing.T) { conformance(t, cloudtest.Launch(t, self)) }

func TestFaults(t *testing.T)        { faults(t, mustOpen) }
func TestProcessFaults(t *testing.T) { faults(t, cloudtest.Launch(t, self)) }

// answer is an error as the service gives it.
func answer(status int, code string, headers ...string) cloudtest.Action {
	return cloudtest.Answer(status, fmt.Sprintf(`<?xml version="1.0" encoding="utf-8"?><Error><Code>%s</Code><Message>of the test</Message></Error>`, code),
		append(headers, "Content-Type: application/xml", "X-Ms-Error-Code: "+code)...)
}

func faults(t *testing.T, open opener) {
	proxy := cloudtest.NewProxy(t, azurite(t, "faults"))
	n := 0
	cloudtest.Faults{
		Proxy: proxy,
		Open: func(t *testing.T) objstore.Store {
			n++
			return open(t, fmt.Sprintf("az://%s/faults/%d", account, n), optionsFor(proxy.URL, "stall_timeout="+cloudtest.StallTimeout.String()))
		},
		IsPut: func(r cloudtest.Request) bool {
			return r.Method == http.MethodPut && !strings.Contains(r.Query, "comp=block&")
		},
		Throttle: answer(http.StatusServiceUnavailable, "ServerBusy", "Retry-After: 1"),
		Broken:   answer(http.StatusInternalServerError, "InternalError"),
	}.Run(t)
}

func TestSizesAndPages(t *testing.T) {
	server := azurite(t, "sizes")
	process := cloudtest.Launch(t, self)
	cloudtest.CheckSizes(t, mustOpen(t, "az://"+account+"/sizes/a", optionsFor(server.URL)))
	cloudtest.CheckSizes(t, process(t, "az://"+account+"/sizes/c", optionsFor(server.URL)))
	cloudtest.CheckPages(t, process(t, "az://"+account+"/sizes/b", optionsFor(server.URL)))
}
