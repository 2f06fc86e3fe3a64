package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// clustered says that the node shares its metadata with others, or may.
func (c Config) clustered() bool { return !strings.HasPrefix(c.metaURL(), "sqlite:") }

// advertised is an address that others are told, with the key that says it.
type advertised struct{ key, listenKey, address string }

// told lists what clients and other nodes are told of this one.
func (c Config) told() (out []advertised) {
	add := func(key, advertise, listenKey, listen string) {
		switch {
		case listen == off:
		case advertise != "":
			out = append(out, advertised{key, listenKey, advertise})
		default:
			out = append(out, advertised{listenKey, listenKey, listen})
		}
	}
	add("advertise", c.Advertise, "listen", c.Listen)
	add("kafka_advertise", c.KafkaAdvertise, "kafka_listen", c.KafkaListen)
	return out
}

// checkAdvertised refuses addresses that nobody can be told.
func (c Config) checkAdvertised() error {
	var errs []error
	for _, a := range c.told() {
		host, port, err := net.SplitHostPort(a.address)
		own := a.key != a.listenKey
		switch n, bad := strconv.ParseUint(port, 10, 16); {
		case !own && err != nil: // said of the listener already
		case err != nil || bad != nil || own && n == 0 || own && host == "":
			errs = append(errs, fmt.Errorf("%s is %q; want host:port as clients and other nodes reach this one, such as mink-1.example.org:9123", a.key, a.address))
		case unspecified(host) && (own || c.clustered()):
			errs = append(errs, fmt.Errorf("%s is %s, which is no address for others: set %s to this host's name or address and the port", a.key, a.address, advertiseKey(a)))
		}
	}
	return errors.Join(errs...)
}

func advertiseKey(a advertised) string {
	if a.listenKey == "listen" {
		return "advertise"
	}
	return "kafka_advertise"
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Warnings are what is right for one node, or for several on one machine, and wrong
// for a cluster of several hosts; each says what to do.
func (c Config) Warnings() (out []string) {
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, a := range c.told() {
		host, _, err := net.SplitHostPort(a.address)
		switch {
		case err != nil:
		case unspecified(host):
			warn("%s is %s, and clients are told that: set %s to this host's name or address", a.key, a.address, advertiseKey(a))
		case c.clustered() && loopback(host):
			warn("%s is %s, which other hosts cannot reach: set %s unless all nodes and clients are on this machine", a.key, a.address, advertiseKey(a))
		}
	}
	if !c.clustered() {
		if c.NodeID != 1 {
			warn("node_id is %d and the metadata are in SQLite, which no other node can share: this is a cluster of one node. For several set meta_url to a Postgres database, the same on each", c.NodeID)
		}
		return out
	}
	for _, s := range []struct{ key, uri string }{{"storage_uri", c.storageURI()}, {"wal_uri", c.walURI()}} {
		if schemeOf(s.uri) == "file" && (s.key == "storage_uri" || c.WALURI != "") {
			warn("%s is a directory, %s: every node must have the same one, so this is for nodes of one machine, or of a file system that all mount; else use an object store", s.key, redactURL(s.uri))
		}
	}
	if u, err := url.Parse(c.metaURL()); err == nil && loopback(u.Hostname()) {
		warn("meta_url names a database on this host, %s: every node must reach the same one", u.Host)
	}
	if c.CoordinatorTick > c.LeaseTTL {
		warn("coordinator_tick, %s, is longer than lease_ttl, %s: partitions and expiry wait longer than a failover", c.CoordinatorTick, c.LeaseTTL)
	}
	return out
}

// checkMeta looks at the metadata of a cluster, without a change: whether the database can be
// read, and what its nodes say against this one.
func checkMeta(ctx context.Context, cfg Config, logger *slog.Logger) (report []string, err error) {
	if !cfg.clustered() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	log, err := openLog(ctx, cfg, true, logger)
	if errors.Is(err, mink.ErrNotExist) {
		return []string{fmt.Sprintf("meta_url %s: reached, and empty: the first start makes the tables", redactURL(cfg.metaURL()))}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("meta_url: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	replica, err := metalog.Open(ctx, log, metaConfig(), logger)
	if err != nil {
		return nil, fmt.Errorf("meta_url: metadata database %s: %w", redactURL(cfg.metaURL()), err)
	}
	view := replica.View()
	var ids []string
	for _, n := range view.LiveNodes() {
		ids = append(ids, fmt.Sprint(n.ID))
		if n.ID != mink.NodeID(cfg.NodeID) {
			for _, a := range cfg.told() {
				if a.address == n.FlightAddress || a.address == n.KafkaAddress {
					report = append(report, fmt.Sprintf("warning: %s is %s, and node %d advertises it too: each node needs its own", a.key, a.address, n.ID))
				}
			}
			continue
		}
		if f := cfg.told()[0]; n.FlightAddress != f.address {
			report = append(report, fmt.Sprintf("warning: node %d is alive at %s: a node that starts with its node_id takes its place, and that one ends; give each node its own node_id", n.ID, n.FlightAddress))
		}
	}
	nodes := "no live node"
	if len(ids) > 0 {
		nodes = "live nodes " + strings.Join(ids, ", ")
	}
	return append([]string{fmt.Sprintf("meta_url %s: read, index %d, %s", redactURL(cfg.metaURL()), view.Index(), nodes)}, report...), nil
}
