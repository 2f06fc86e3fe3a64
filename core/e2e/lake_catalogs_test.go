package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/api"
)

// otherCatalog is a catalog that is no part of the node, behind a proxy.
type otherCatalog struct {
	plugin  string
	server  func(t *testing.T) *cloudtest.Server
	durable bool // its tables outlive its process
	options func(url string) string
	lake    func(server *cloudtest.Server) lakeReaders
	commit  func(*http.Request) bool // a commit of a round, or what makes a table
}

var otherCatalogs = []otherCatalog{
	{
		plugin: "rest", durable: true,
		server:  func(t *testing.T) *cloudtest.Server { return cloudtest.IcebergREST(t, t.TempDir()) },
		options: func(url string) string { return "uri=" + url },
		lake:    func(s *cloudtest.Server) lakeReaders { return lakeReaders{rest: s.URL} },
		commit: func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/tables/")
		},
	},
	{
		plugin: "glue",
		server: func(t *testing.T) *cloudtest.Server { return cloudtest.Moto(t) },
		options: func(url string) string {
			return "region=us-east-1,access_key_id=any,secret_access_key=any,endpoint=" + url
		},
		lake: func(s *cloudtest.Server) lakeReaders {
			return lakeReaders{more: map[string]string{"pyiceberg-glue": s.URL}}
		},
		commit: func(r *http.Request) bool { return r.Header.Get("X-Amz-Target") == "AWSGlue.UpdateTable" },
	},
}

// lakeStats are the tables at the lake, as the node tells them.
func (n *node) lakeStats() (out []api.TieringStats) {
	n.t.Helper()
	var stats api.Stats
	if err := json.Unmarshal(n.mink(nil, "--json", "cluster", "stats", "--node", "1"), &stats); err != nil {
		n.t.Fatal(err)
	}
	return slices.DeleteFunc(stats.Tiering, func(s api.TieringStats) bool { return s.Sink != "lake" })
}

// saysWhy waits until the stats say of every table why it is not in the lake.
func (x *lakeTables) saysWhy(want string) {
	x.n.t.Helper()
	eventually(x.n.t, "the stats say why no table is in the lake: "+want, func() bool {
		waiting := slices.DeleteFunc(x.n.lakeStats(), func(s api.TieringStats) bool {
			return s.LagOffsets == 0 || s.InARow == 0 || !strings.Contains(s.LastError, want)
		})
		return len(waiting) == len(x.all)
	})
}

// TestLakeInOtherCatalogs: a node whose tables are entered in a catalog that is no part of it,
// over the plugin. The catalog is away for a while, also while the node starts, and then its
// answers to commits are lost: every row is in the lake once, as other engines find it through
// that catalog.
func TestLakeInOtherCatalogs(t *testing.T) {
	for _, c := range otherCatalogs {
		t.Run(c.plugin, func(t *testing.T) {
			lakePython(t)
			server := c.server(t)
			proxy := cloudtest.NewProxy(t, server)
			n := newNode(t, "--wal-upload-interval", "200ms", "--kv-snapshot-interval", "1s", "--plugin-dir", installPlugin(t, "plugins/catalog-"+c.plugin),
				"--lake-catalog", c.plugin, "--lake-catalog-options", c.options(proxy.URL))
			n.lake = c.lake(server)
			if out, err := n.command("--check-config").CombinedOutput(); err != nil || !strings.Contains(string(out), "lake_catalog "+c.plugin+": opened and read") {
				t.Fatalf("%v\n%s", err, out)
			}
			n.start()
			x := newLakeTables(n)
			x.write(0)
			x.settled("at first")

			proxy.Down()
			if c.durable {
				server.Kill()
			}
			x.write(1)
			x.saysWhy("connection refused")
			// What was read before is read on, with all that came since.
			readBy(t, "while the catalog is away", x.all, "mink-union")
			n.kill()
			n.start()
			x.write(2)
			x.saysWhy("connection refused")
			_, errOut, err := n.tryMink(nil, "read", "shop.visits", "--mode", "union", "--retry-for", "1s")
			if err == nil || !strings.Contains(string(errOut), "lake table shop.visits: unavailable") || !strings.Contains(string(errOut), "connection refused") {
				t.Errorf("a union read without a catalog: %v\n%s", err, errOut)
			}
			if c.durable {
				if err := server.Start(); err != nil {
					t.Fatal(err)
				}
			}
			proxy.Up(t)
			x.settled("after the catalog was away")

			var lost atomic.Int32
			proxy.Spoil(cloudtest.Rule{Times: 6, Match: c.commit, Do: func(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error)) {
				lost.Add(1)
				cloudtest.LoseAnswer(w, r, forward)
			}})
			x.write(3)
			x.settled("after answers to commits were lost")
			if lost.Load() == 0 {
				t.Error("no answer was lost")
			}
			proxy.Take()

			x.alter()
			x.write(4)
			x.settled("after changes of columns")
			for _, s := range n.lakeStats() {
				if s.InARow != 0 || s.State == "failed" {
					t.Errorf("%+v", s)
				}
			}
			n.fsck()
			n.stop()
		})
	}
}

// A table that the catalog cannot have is refused when it is made, and when it is to get
// into the lake; over Kafka too.
func TestLakeRefusesNamesOfTheCatalog(t *testing.T) {
	moto := cloudtest.Moto(t)
	n := newNode(t, "--plugin-dir", installPlugin(t, "plugins/catalog-glue"), "--lake-catalog", "glue",
		"--lake-catalog-options", "region=us-east-1,access_key_id=any,secret_access_key=any,endpoint="+moto.URL)
	n.start()
	lake := []string{"--option", "lake=true"}
	const says = "takes names of a-z, 0-9 and _ alone"
	id := columns("id BIGINT NOT NULL")
	refused := func(args ...string) {
		t.Helper()
		if _, errOut, err := n.tryMink(nil, args...); err == nil || !strings.Contains(string(errOut), says) {
			t.Errorf("%v: %v\n%s", args, err, errOut)
		}
	}
	n.mink(nil, "db", "create", "shop")
	n.mink(nil, "db", "create", "web-shop")
	refused(append(append([]string{"table", "create", "shop.Orders"}, id...), lake...)...)
	refused(append(append([]string{"table", "create", "web-shop.orders"}, id...), lake...)...)
	refused("topic", "create", "page.views", "--config", "mink.lake=true")
	n.createTable("shop.Orders", id)
	refused("table", "alter", "shop.Orders", "--set", "lake=true")
	n.mink(nil, "table", "alter", "shop.Orders", "--add", "note STRING")
	n.createTable("shop.orders_2", id, lake...)
	n.stop()
}
