package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/objstore"
)

// answer is an error as S3 writes it.
func answer(status int, code string, headers ...string) cloudtest.Action {
	return cloudtest.Answer(status, fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>%s</Code><Message>of the test</Message><RequestId>1</RequestId></Error>`, code), append(headers, "Content-Type: application/xml")...)
}

func TestFaults(t *testing.T)        { faults(t, mustOpen) }
func TestProcessFaults(t *testing.T) { faults(t, cloudtest.Launch(t, self)) }

func faults(t *testing.T, open opener) {
	proxy := cloudtest.NewProxy(t, cloudtest.S3(t, "faults"))
	n := 0
	cloudtest.Faults{
		Proxy: proxy,
		Open: func(t *testing.T) objstore.Store {
			n++
			return open(t, fmt.Sprintf("s3://faults/%d", n), optionsFor(proxy.URL, "stall_timeout="+cloudtest.StallTimeout.String()))
		},
		IsPut: func(r cloudtest.Request) bool {
			return r.Method == http.MethodPut || r.Method == http.MethodPost && strings.Contains(r.Query, "uploadId")
		},
		Throttle: answer(http.StatusServiceUnavailable, "SlowDown", "Retry-After: 1"),
		Broken:   answer(http.StatusInternalServerError, "InternalError"),
	}.Run(t)
}

func TestSizesAndPages(t *testing.T) {
	server := cloudtest.S3(t, "sizes")
	process := cloudtest.Launch(t, self)
	cloudtest.CheckSizes(t, mustOpen(t, "s3://sizes/a", optionsFor(server.URL)))
	cloudtest.CheckSizes(t, process(t, "s3://sizes/c", optionsFor(server.URL)))
	cloudtest.CheckPages(t, process(t, "s3://sizes/b", optionsFor(server.URL)))
}
