package main

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

// optionsFor is how to reach a test server.
func optionsFor(url string, more ...string) map[string]string {
	o := map[string]string{"endpoint": url, "access_key_id": cloudtest.AccessKeyID, "secret_access_key": cloudtest.SecretAccessKey}
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

func TestMain(m *testing.M) { cloudtest.Main(m, self) }

// opener opens stores in this process or in a plugin's.
type opener func(t *testing.T, uri string, options map[string]string) objstore.Store

// filesCannot are the checks that versitygw fails, which keeps objects as files: it
// has no key below another key and no segment over 255 bytes. S3 has both, and
// TestKeys has the checks.
var filesCannot = []string{"HostileKeys", "KeyPrefixOfKey", "ListAgainstModel"}

func conformance(t *testing.T, open opener) {
	server := cloudtest.S3(t, "kit")
	n := 0
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		n++
		return open(t, fmt.Sprintf("s3://kit/check/%d", n), optionsFor(server.URL))
	}, filesCannot...)
}

func TestConformance(t *testing.T)        { conformance(t, mustOpen) }
func TestProcessConformance(t *testing.T) { conformance(t, cloudtest.Launch(t, self)) }

// keys runs the kit against a server that keeps keys in memory. It ignores
// conditions on the completion of uploads and takes a part for any key's upload,
// which S3 and versitygw do not.
func keys(t *testing.T, open opener) {
	backend := s3mem.New()
	if err := backend.CreateBucket("kit"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	n := 0
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		n++
		return open(t, fmt.Sprintf("s3://kit/check/%d", n), optionsFor(server.URL))
	}, "MultipartCreateOnly", "MultipartErrors")
}

func TestKeys(t *testing.T)        { keys(t, mustOpen) }
func TestProcessKeys(t *testing.T) { keys(t, cloudtest.Launch(t, self)) }

// TestWholeBucket: without a prefix the store is the bucket.
func TestWholeBucket(t *testing.T) {
	server := cloudtest.S3(t, "whole")
	s := mustOpen(t, "s3://whole", optionsFor(server.URL))
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "a/b", Chunks: [][]byte{[]byte("x")}}); err != nil {
		t.Fatal(err)
	}
	below := mustOpen(t, "s3://whole/a/", optionsFor(server.URL))
	page, err := below.List(t.Context(), objstore.ListRequest{})
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "b" {
		t.Fatalf("%+v, %v", page, err)
	}
}
