package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/objstore"
)

// TestOpenRefuses: a store that cannot work is refused at once, with the cause and
// what to do.
func TestOpenRefuses(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("HOME", t.TempDir())
	server := cloudtest.S3(t, "there")
	proxy := cloudtest.NewProxy(t, server)
	elsewhere := cloudtest.Answer(http.StatusMovedPermanently, `<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>`, "X-Amz-Bucket-Region: eu-north-1")
	for name, c := range map[string]struct {
		uri     string
		options map[string]string
		spoil   cloudtest.Action
		is      error
		says    []string
	}{
		"no bucket":      {"s3://absent/x", optionsFor(server.URL), nil, objstore.ErrUnavailable, []string{"NoSuchBucket", "create it"}},
		"unknown key":    {"s3://there", optionsFor(server.URL, "access_key_id=nobody"), nil, objstore.ErrUnauthorized, []string{"does not know the access key"}},
		"wrong secret":   {"s3://there", optionsFor(server.URL, "secret_access_key=wrong"), nil, objstore.ErrUnauthorized, []string{"secret_access_key"}},
		"wrong region":   {"s3://there", optionsFor(server.URL, "region=eu-west-3"), nil, objstore.ErrInvalid, []string{"set the option region"}},
		"bucket's home":  {"s3://there", optionsFor(proxy.URL), elsewhere, objstore.ErrInvalid, []string{"region eu-north-1"}},
		"clock":          {"s3://there", optionsFor(proxy.URL), answer(http.StatusForbidden, "RequestTimeTooSkewed"), objstore.ErrUnauthorized, []string{"set the time"}},
		"denied":         {"s3://there", optionsFor(proxy.URL), answer(http.StatusForbidden, "AccessDenied"), objstore.ErrUnauthorized, []string{"allow s3:ListBucket"}},
		"nobody there":   {"s3://there", optionsFor("http://127.0.0.1:1"), nil, objstore.ErrUnavailable, []string{"127.0.0.1:1", "connection refused"}},
		"no such host":   {"s3://there", optionsFor("http://s3.invalid"), nil, objstore.ErrUnavailable, []string{"s3.invalid"}},
		"no credentials": {"s3://there", map[string]string{"endpoint": server.URL}, nil, objstore.ErrUnauthorized, []string{"AWS_ACCESS_KEY_ID"}},
		"no profile":     {"s3://there", map[string]string{"endpoint": server.URL, "profile": "absent"}, nil, objstore.ErrInvalid, []string{"absent"}},
		"no region":      {"s3://there", map[string]string{"access_key_id": "a", "secret_access_key": "b"}, nil, objstore.ErrInvalid, []string{"AWS_REGION"}},
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
			if !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v\ndoes not say %q", err, text)
				}
			}
			if secret := c.options["secret_access_key"]; len(secret) > 5 && strings.Contains(err.Error(), secret) {
				t.Errorf("%v\nshows the secret", err)
			}
		})
	}
}

func TestConfigIsRefused(t *testing.T) {
	for _, c := range []struct {
		uri     string
		options map[string]string
		says    string
	}{
		{"s3://", nil, uriForm},
		{"s3:///prefix", nil, uriForm},
		{"gs://bucket", nil, uriForm},
		{"s3://key:secret@bucket/x", nil, uriForm},
		{"s3://bucket/x?region=a", nil, "give options by name"},
		{"s3://bucket/a//b", nil, "prefix"},
		{"s3://bucket/" + strings.Repeat("p", 200), nil, "the limit is"},
		{"s3://bucket", map[string]string{"endpoint": "localhost:9000"}, "endpoint"},
		{"s3://bucket", map[string]string{"endpoint": "https://user:pass@host"}, "endpoint"},
		{"s3://bucket", map[string]string{"path_style": "often"}, "path_style"},
		{"s3://bucket", map[string]string{"attempts": "0"}, "attempts"},
		{"s3://bucket", map[string]string{"stall_timeout": "30"}, "stall_timeout"},
		{"s3://bucket", map[string]string{"sse": "kms"}, "aws:kms:dsse"},
		{"s3://bucket", map[string]string{"sse_kms_key_id": "k"}, "needs sse"},
		{"s3://bucket", map[string]string{"access_key_id": "k"}, "go together"},
		{"s3://bucket", map[string]string{"session_token": "k"}, "session_token needs"},
		{"s3://bucket", map[string]string{"access_key_id": "k", "secret_access_key": "s", "profile": "p"}, "two ways"},
	} {
		_, err := readConfig(c.uri, c.options)
		if !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: %v; want it to say %q", c.uri, c.options, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "pass@") {
			t.Errorf("%v shows a password", err)
		}
	}
}

// TestUnknownOption goes the way of a node's configuration.
func TestUnknownOption(t *testing.T) {
	_, err := self.Manifest().Resolve(map[string]string{"regoin": "x"})
	if err == nil || !strings.Contains(err.Error(), "did you mean region?") {
		t.Fatal(err)
	}
	for _, o := range options {
		if _, err := self.Manifest().Resolve(map[string]string{o.Name: "x"}); err != nil {
			t.Error(err)
		}
	}
	if err := self.Manifest().Validate(); err != nil {
		t.Error(err)
	}
}

func TestManual(t *testing.T) { cloudtest.CheckManual(t, self) }
