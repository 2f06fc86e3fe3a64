package server

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write docs/configuration.md anew")

func environ(list ...string) func() []string { return func() []string { return list } }

func TestLayersOfConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mink.toml")
	if err := os.WriteFile(path, []byte("node_id = 7\nlease_ttl = \"10s\"\nwal_batch_bytes = \"1MiB\"\nauto_create_topics = false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := LoadConfig(path, environ("MINK_LEASE_TTL=20s", "MINK_CLUSTER_ID=env", "MINK_BOOTSTRAP=grpc://elsewhere:1", "HOME=/x"), map[string]string{"cluster_id": "flag"})
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeID != 7 || time.Duration(c.LeaseTTL) != 20*time.Second || c.ClusterID != "flag" || c.WALBatchBytes != 1<<20 || c.AutoCreateTopics {
		t.Fatalf("defaults, then file, then environment, then flags give %+v", c)
	}
	if c.KafkaListen != DefaultConfig().KafkaListen {
		t.Fatalf("a key that nobody set is %q", c.KafkaListen)
	}
}

func TestConfigurationRefusesWithTheKeyAndWhatToDo(t *testing.T) {
	for _, c := range []struct {
		name  string
		env   []string
		flags map[string]string
		want  []string
	}{
		{"unknown key", []string{"MINK_NODE_IDD=1"}, nil, []string{`"node_idd"`, `"node_id"`}},
		{"not a duration", nil, map[string]string{"lease_ttl": "soon"}, []string{"lease_ttl", "10s"}},
		{"not a number", nil, map[string]string{"node_id": "one"}, []string{"node_id"}},
		{"node id 0", nil, map[string]string{"node_id": "0"}, []string{"node_id is 0", "1 or more"}},
		{"beyond loopback", nil, map[string]string{"kafka_listen": "0.0.0.0:9092"}, []string{"kafka_listen", "--insecure", "no authentication"}},
		{"every interface", nil, map[string]string{"listen": ":9123"}, []string{"listen", "--insecure"}},
		{"no port", nil, map[string]string{"listen": "localhost"}, []string{"listen", "host:port"}},
		{"message size", nil, map[string]string{"message_bytes_max": "64KiB"}, []string{"message_bytes_max is 64KiB", "1MiB"}},
		{"log cache", nil, map[string]string{"log_cache_bytes": "1MiB"}, []string{"log_cache_bytes is 1MiB", "32MiB"}},
		{"topic database", nil, map[string]string{"kafka_database": "a/b"}, []string{"kafka_database", `"a/b"`}},
		{"log level", nil, map[string]string{"log_level": "loud"}, []string{"log_level", "debug"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := LoadConfig("", environ(c.env...), c.flags)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
	if _, err := LoadConfig("", environ(), map[string]string{"kafka_listen": "0.0.0.0:9092", "insecure": "true"}); err != nil {
		t.Errorf("--insecure: %v", err)
	}
	path := filepath.Join(t.TempDir(), "mink.toml")
	for text, want := range map[string]string{
		"node_id = 1\nlease_ttl = 30\n":      "unit",
		"node_id = 1\ncluster_id = \"open\n": "line 2",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadConfig(path, environ(), nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %q lacks %q", text, err, want)
		}
	}
	if _, err := LoadConfig("/no/such/file.toml", environ(), nil); err == nil || !strings.Contains(err.Error(), "/no/such/file.toml") {
		t.Errorf("missing file: %v", err)
	}
}

func TestRedactedHidesSecrets(t *testing.T) {
	c := DefaultConfig()
	c.MetaURL = "postgres://mink:hunter2@db/mink?sslpassword=hunter3"
	c.StorageURI = "s3://b/p?access_key=AKIA&region=eu"
	r := c.Redacted()
	for k, v := range r {
		for _, secret := range []string{"hunter2", "hunter3", "AKIA"} {
			if strings.Contains(v, secret) {
				t.Errorf("%s shows a secret: %s", k, v)
			}
		}
	}
	if !strings.Contains(r["meta_url"], "mink:") || !strings.Contains(r["storage_uri"], "region=eu") {
		t.Errorf("redacting took too much: %v, %v", r["meta_url"], r["storage_uri"])
	}
	if len(r) != len(Keys()) {
		t.Errorf("%d values for %d keys", len(r), len(Keys()))
	}
}

func TestReferencePage(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Configuration of a node

Defaults, then the TOML file of ` + "`--config`" + `, then ` + "`MINK_*`" + ` variables, then flags. An unknown key fails the start
and names the nearest known one. Durations are written ` + "`500ms` `10s` `5m` `7d`" + `, sizes ` + "`64KiB` `4MiB` `1GiB`" + `.
` + "`mink cluster config`" + ` prints what is in effect, secrets hidden.

This page is made from the configuration's definition: ` + "`go test ./core/server -run ReferencePage -rewrite`" + `.

| key | flag | variable | type | default | |
| --- | --- | --- | --- | --- | --- |
`)
	for _, k := range Keys() {
		if k.Doc == "" {
			t.Errorf("key %s has no documentation", k.Name)
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` | `%s` | %s | `%s` | %s |\n", k.Name, k.Flag, k.Env, k.Type, k.Default, k.Doc)
	}
	const path = "../../docs/configuration.md"
	if *rewrite {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Error("docs/configuration.md is not what the configuration says: go test ./core/server -run ReferencePage -rewrite")
	}
}

func TestASecondProcessIsKeptOut(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDataDir(dir); err == nil || !strings.Contains(err.Error(), "another mink process") || !strings.Contains(err.Error(), dir) {
		t.Fatalf("second lock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	again, err := lockDataDir(dir)
	if err != nil {
		t.Fatalf("after the first one is gone: %v", err)
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
}

// Whatever is wrong with a URL, its password is not in the message about it.
func FuzzRedactURL(f *testing.F) {
	const password = "s3cr3tpw"
	for _, c := range [][2]string{
		{"postgres", "h:5432/mink?sslmode=disable"}, {"postgres", "h:bad port/x"}, {"a/b", "h"}, {"", ""}, {"postgres", "h/x?password=y"}, {"%zz", "h"},
		{"postgres", "a@b/c?x=%zz"}, {"s3", "bucket/prefix?secret_key=z"}, {"file", "x"}, {"sqlite", "/x"},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, scheme, rest string) {
		if strings.Contains(scheme+rest, password) {
			t.Skip()
		}
		if s := strings.ToLower(scheme); s == "file" || s == "sqlite" { // a path, unless it has a user
			t.Skip()
		}
		texts := []string{scheme + "://u:" + password + "@" + rest, scheme + ":u:" + password + "@" + rest}
		if !strings.ContainsAny(scheme+rest, "?#") {
			texts = append(texts, scheme+"://"+rest+"?password="+password)
		}
		for _, text := range texts {
			if out := redactURL(text); strings.Contains(out, password) {
				t.Errorf("%q is shown as %q", text, out)
			}
		}
	})
}
