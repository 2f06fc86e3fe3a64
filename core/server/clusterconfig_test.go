package server

import (
	"strings"
	"testing"
	"time"
)

// What a cluster's configuration must not be, and what it may be and is told of.
func TestClusterConfigurations(t *testing.T) {
	const pg = "postgres://mink@db.example.org/mink"
	for name, c := range map[string]struct {
		change func(*Config)
		err    string
		warns  []string // one of each, and no other
	}{
		"one node":  {func(*Config) {}, "", nil},
		"a cluster": {func(c *Config) {}, "", nil},
		"no address for others": {func(c *Config) { c.MetaURL, c.Listen, c.StorageURI = pg, "0.0.0.0:9123", "s3://b" },
			"listen is 0.0.0.0:9123, which is no address for others: set advertise", nil},
		"none for Kafka clients": {func(c *Config) { c.MetaURL, c.KafkaListen = pg, ":9092" }, "set kafka_advertise", nil},
		"advertised anywhere":    {func(c *Config) { c.Advertise = "[::]:9123" }, "advertise is [::]:9123, which is no address", nil},
		"no port":                {func(c *Config) { c.Advertise = "mink-1.example.org" }, "want host:port", nil},
		"port 0":                 {func(c *Config) { c.KafkaAdvertise = "mink-1:0" }, "want host:port", nil},
		"no host":                {func(c *Config) { c.KafkaAdvertise = ":9092" }, "want host:port", nil},
		"anywhere, alone":        {func(c *Config) { c.Listen = "0.0.0.0:9123" }, "", []string{"clients are told that: set advertise"}},
		"Kafka off":              {func(c *Config) { c.KafkaListen, c.Listen = "off", "0.0.0.0:9123"; c.Advertise = "n1:9123" }, "", nil},
		"one machine": {func(c *Config) { c.MetaURL = "postgres://mink@localhost:5432/mink" }, "", []string{
			"listen is 127.0.0.1:9123, which other hosts cannot reach: set advertise", "kafka_listen is 127.0.0.1:9092, which other hosts cannot reach: set kafka_advertise",
			"storage_uri is a directory", "meta_url names a database on this host"}},
		"a log in a directory": {func(c *Config) {
			c.MetaURL, c.StorageURI, c.WALURI, c.Advertise, c.KafkaAdvertise = pg, "s3://b", "file:///wal", "n1:9123", "n1:9092"
		}, "", []string{"wal_uri is a directory"}},
		"a slow tick": {func(c *Config) {
			c.MetaURL, c.StorageURI, c.Advertise, c.KafkaAdvertise, c.CoordinatorTick = pg, "s3://b", "n1:9123", "n1:9092", dur(time.Minute)
		}, "", []string{"coordinator_tick, 1m"}},
		"SQLite for a second node": {func(c *Config) { c.NodeID = 2 }, "", []string{"set meta_url to a Postgres database"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Insecure = true
			if name == "a cluster" {
				cfg.MetaURL, cfg.StorageURI, cfg.Advertise, cfg.KafkaAdvertise = pg, "s3://b", "n1:9123", "n1:9092"
			}
			c.change(&cfg)
			err := cfg.Validate()
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if c.err != "" {
				return
			}
			got := cfg.Warnings()
			if len(got) != len(c.warns) {
				t.Fatalf("warnings %q, want %q", got, c.warns)
			}
			for i, want := range c.warns {
				if !strings.Contains(got[i], want) {
					t.Errorf("warning %q, want one with %q", got[i], want)
				}
			}
		})
	}
}
