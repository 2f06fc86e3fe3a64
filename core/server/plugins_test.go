package server

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/host/hosttest"
)

func TestMain(m *testing.M) {
	hosttest.Main()
	os.Exit(m.Run())
}

func TestOptionsAsTableAndAsText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mink.toml")
	text := "storage_uri = \"s3://b\"\n[storage_options]\nregion = \"eu\"\npath_style = true\npart_mib = 8\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := LoadConfig(path, environ(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Options{"region": "eu", "path_style": "true", "part_mib": "8"}, c.StorageOptions); diff != "" {
		t.Error(diff)
	}
	c, err = LoadConfig(path, environ(`MINK_STORAGE_OPTIONS=region=us,"list=a,b=c"`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Options{"region": "us", "list": "a,b=c"}, c.StorageOptions); diff != "" {
		t.Errorf("a later layer replaces the table: %s", diff)
	}
	for name, c := range map[string]struct {
		set  map[string]string
		want string
	}{
		"no value":             {map[string]string{"storage_uri": "s3://b", "storage_options": "region"}, "name=value"},
		"twice":                {map[string]string{"storage_uri": "s3://b", "storage_options": "a=hunter2,a=hunter2"}, "every name once"},
		"for a directory":      {map[string]string{"storage_options": "a=hunter2"}, "takes no options"},
		"no store of the log":  {map[string]string{"storage_uri": "s3://b", "wal_options": "a=hunter2"}, "wal_uri is not"},
		"a log in a directory": {map[string]string{"wal_uri": "file://x", "wal_options": "a=hunter2"}, "takes no options"},
	} {
		_, err := LoadConfig("", environ(), c.set)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, []byte("[storage_options.deep]\nregion = \"eu\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig(path, environ(), nil); err == nil || !strings.Contains(err.Error(), "option deep") {
		t.Error(err)
	}
}

func TestOptionsOfTheLogsStore(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		own  bool
		want Options
	}{
		"one store":             {Config{StorageURI: "s3://b", StorageOptions: Options{"a": "1"}}, false, nil},
		"same scheme":           {Config{StorageURI: "s3://b", StorageOptions: Options{"a": "1"}, WALURI: "s3://w"}, true, Options{"a": "1"}},
		"same URI":              {Config{StorageURI: "s3://b", StorageOptions: Options{"a": "1"}, WALURI: "s3://b"}, false, Options{"a": "1"}},
		"same URI, own options": {Config{StorageURI: "s3://b", WALURI: "s3://b", WALOptions: Options{"a": "1"}}, true, Options{"a": "1"}},
		"other scheme":          {Config{StorageURI: "s3://b", StorageOptions: Options{"a": "1"}, WALURI: "gs://w"}, true, nil},
	} {
		if got := c.cfg.walOptions(); c.cfg.ownWAL() != c.own || cmp.Diff(c.want, got) != "" {
			t.Errorf("%s: %v, %v", name, got, c.cfg.ownWAL())
		}
	}
}

func pluginConfig(t *testing.T, behaviours ...string) Config {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.PluginDir = t.TempDir(), t.TempDir()
	cfg.Listen, cfg.KafkaListen, cfg.HTTPListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	for _, b := range behaviours {
		hosttest.Install(t, cfg.PluginDir, b)
	}
	return cfg
}

func TestCheckOpensTheStores(t *testing.T) {
	t.Setenv("TEST_PLUGIN_REGION", "here")
	cfg := pluginConfig(t, "dir", "opts")
	cfg.StorageURI, cfg.WALURI = "dir://"+t.TempDir(), "opts://log"
	cfg.WALOptions = Options{"token": "right"}
	logger := slog.New(slog.DiscardHandler)
	report, err := Check(t.Context(), cfg, logger)
	if err != nil || len(report) != 2 || !strings.Contains(report[0], "storage_uri dir://") || !strings.Contains(report[1], "plugin opts 1.0.0, "+cfg.PluginDir) {
		t.Errorf("%q, %v", report, err)
	}
	cfg.WALOptions = Options{"token": "hunter2"}
	if _, err = Check(t.Context(), cfg, logger); err == nil || !strings.Contains(err.Error(), "wal_uri: object store opts://log: plugin opts: not authorized") || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "LOCK")); err == nil {
		t.Error("a check locks the data directory")
	}
}

func TestCheckOpensTheCatalog(t *testing.T) {
	cfg := pluginConfig(t)
	hosttest.InstallCatalog(t, cfg.PluginDir, "sql")
	logger := slog.New(slog.DiscardHandler)
	cfg.LakeCatalog, cfg.LakeCatalogOptions = "sql", Options{"dir": t.TempDir()}
	report, err := Check(t.Context(), cfg, logger)
	if err != nil || len(report) < 2 || !strings.Contains(report[1], "lake_catalog sql: opened and read (plugin sql 1.0.0, "+cfg.PluginDir) {
		t.Errorf("%q, %v", report, err)
	}
	for _, c := range []struct {
		name    string
		options Options
		says    string
	}{
		{"sql", Options{"dri": "hunter2"}, "did you mean dir?"},
		{"sql", Options{"dir": "/nowhere/at/all"}, `lake_catalog = "sql"`},
		{"sqll", nil, "Did you mean sql?"},
		{"Sql", nil, "name of a catalog plugin"},
		{"local", Options{"dir": "hunter2"}, "takes no options"},
	} {
		cfg.LakeCatalog, cfg.LakeCatalogOptions = c.name, c.options
		if _, err := Check(t.Context(), cfg, logger); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s %v: %v", c.name, c.options, err)
		}
	}
	cfg.LakeCatalog, cfg.LakeCatalogOptions, cfg.LakeCatalogURL = "sql", nil, "sqlite:x"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "lake_catalog_url is set") {
		t.Error(err)
	}
}

// A node whose stores are plugins serves, shows them in its statistics, metrics
// and configuration, and leaves no process behind.
func TestNodeOnPlugins(t *testing.T) {
	t.Setenv("TEST_PLUGIN_REGION", "here")
	cfg := pluginConfig(t, "dir", "opts")
	cfg.StorageURI, cfg.WALURI = "dir://"+t.TempDir(), "opts://log"
	cfg.WALOptions = Options{"token": "right", "colour": "blue"}
	hosttest.InstallCatalog(t, cfg.PluginDir, "sql")
	cfg.LakeCatalog, cfg.LakeCatalogOptions = "sql", Options{"dir": t.TempDir(), "token": "hunter2"}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready, ended := make(chan Ready, 1), make(chan error, 1)
	go func() {
		ended <- Run(ctx, cfg, slog.New(slog.DiscardHandler), func(r Ready) { ready <- r })
	}()
	var at Ready
	select {
	case at = <-ready:
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("the node does not become ready")
	}
	ccfg := client.Default()
	ccfg.Bootstrap = []string{"grpc://" + at.Flight}
	c, err := client.New(ccfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stats, err := c.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(stats.Plugins) != 3 || stats.Plugins[2].Kind != "catalog" {
		t.Fatalf("%+v", stats.Plugins)
	}
	for i, name := range []string{"dir", "opts"} {
		p := stats.Plugins[i]
		if p.Name != name || p.PID == 0 || p.RSSBytes < 1<<20 || p.Restarts != 0 || len(p.Operations) == 0 || p.Operations[0].Calls == 0 || p.Operations[0].P99Ms <= 0 {
			t.Errorf("%+v", p)
		}
	}
	config, err := c.Config(ctx)
	if err != nil || config["wal_options"] != "colour=blue,token=xxxxx" {
		t.Errorf("%q, %v", config["wal_options"], err)
	}
	if want := "dir=" + cfg.LakeCatalogOptions["dir"] + ",token=xxxxx"; config["lake_catalog_options"] != want {
		t.Errorf("%q, want %q", config["lake_catalog_options"], want)
	}
	// A catalog that keeps pointers is served to other engines.
	made, err := http.Post("http://"+at.HTTP+"/iceberg/v1/namespaces", "application/json", strings.NewReader(`{"namespace":["shop"]}`)) //nolint:noctx // a test
	if err != nil || made.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", made, err)
	}
	_ = made.Body.Close()
	in, err := sqlcatalog.Open(ctx, "sqlite:"+filepath.Join(cfg.LakeCatalogOptions["dir"], "catalog.db"), sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.LoadNamespace(ctx, catalog.LoadNamespaceRequest{Namespace: []string{"shop"}}); err != nil {
		t.Errorf("it is not in the plugin's catalog: %v", err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	page := metrics(t, at.HTTP)
	for _, want := range []string{
		`mink_plugin_up{plugin="dir"} 1`, `mink_plugin_restarts_total{plugin="opts"} 0`, `mink_plugin_call_seconds_bucket{operation="put",plugin="opts",le="`,
		`mink_plugin_rss_bytes{plugin="dir"}`, `mink_plugin_sent_bytes_total{operation="put",plugin="opts"}`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not among the metrics", want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, p := range stats.Plugins {
		if _, err := os.Stat(filepath.Join("/proc", "self")); err != nil {
			t.Skip("no /proc here")
		}
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(p.PID))); err == nil {
			t.Errorf("process %d of plugin %s outlives the node", p.PID, p.Name)
		}
	}
}

func metrics(t *testing.T, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}
