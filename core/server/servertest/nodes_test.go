package servertest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
)

// Any node tells what every live one says of itself; one that stands still has the
// reason in its place and holds nothing up.
func TestAnyNodeAsksAll(t *testing.T) {
	c := servertest.Start(t, 3, servertest.LeaseTTL(time.Minute), servertest.Configure(func(id int, c *server.Config) {
		if id == 2 {
			c.LeaseTTL *= 2
		}
	}))
	one := c.Client(t, 1)
	ask := func(about string) api.NodeAnswers {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		r, err := one.AskNodes(ctx, api.AskNodes{About: about, TimeoutMs: 3000})
		if err != nil {
			t.Fatal(err)
		}
		if r.Node != 1 || len(r.Nodes) != 3 || r.Head == 0 {
			t.Fatalf("asked by node %d, head %d, %d nodes", r.Node, r.Head, len(r.Nodes))
		}
		return r
	}
	all := func(about string, ok func(i int, n api.NodeAnswer) bool) {
		t.Helper()
		var last api.NodeAnswers
		if !servertest.Wait(t.Context(), func() bool {
			last = ask(about)
			good := true
			for i, n := range last.Nodes {
				good = good && int(n.Node) == i+1 && n.Epoch > 0 && ok(i, n)
			}
			return good
		}) {
			t.Fatalf("%s: %+v", about, last)
		}
	}
	answered := func(n api.NodeAnswer) bool { return n.Error == "" && n.AppliedIndex > 0 }
	all(api.ActionHealth, func(i int, n api.NodeAnswer) bool {
		want := int64(60_000)
		if i == 1 {
			want *= 2
		}
		return answered(n) && n.Health != nil && n.Health.Ready && n.Health.Node == n.Node && n.Health.LeaseTTLMs == want && n.Config == nil
	})
	all(api.ActionGetConfig, func(i int, n api.NodeAnswer) bool {
		return answered(n) && n.Config != nil && n.Config.Values["node_id"] == string(rune('1'+i))
	})
	all(api.ActionNodeStats, func(_ int, n api.NodeAnswer) bool {
		return answered(n) && n.Stats != nil && n.Stats.Node == n.Node && len(n.Stats.Loops) > 10
	})

	c.Pause(3)
	all(api.ActionHealth, func(i int, n api.NodeAnswer) bool {
		if i == 2 {
			return strings.Contains(n.Error, "no answer within 3s") && n.Health == nil
		}
		return answered(n)
	})
	c.Resume(3)
	// Node 2 sees nothing new of the metadata: it answers all the same, and lags.
	c.PauseMetadata(2)
	if err := c.Client(t, 1, 3).CreateDatabase(t.Context(), "later", true); err != nil {
		t.Fatal(err)
	}
	all(api.ActionHealth, func(i int, n api.NodeAnswer) bool { return answered(n) && (n.Lag > 0) == (i == 1) })
	c.ResumeMetadata(2)
	all(api.ActionHealth, func(_ int, n api.NodeAnswer) bool { return answered(n) && n.Lag == 0 })

	for _, wrong := range []api.AskNodes{{About: "check"}, {About: api.ActionHealth, Node: 9}, {About: api.ActionHealth, TimeoutMs: 3_600_000}} {
		if _, err := one.AskNodes(t.Context(), wrong); err == nil {
			t.Errorf("%+v was answered", wrong)
		}
	}
	r, err := one.AskNodes(t.Context(), api.AskNodes{About: api.ActionHealth, Node: 2})
	if err != nil || len(r.Nodes) != 1 || r.Nodes[0].Node != 2 || r.Nodes[0].Health == nil {
		t.Errorf("node 2 alone: %+v, %v", r, err)
	}
}
