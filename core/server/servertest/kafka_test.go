package servertest_test

import (
	"testing"
)

// A client that retries sees no failure, whatever becomes of the leaders and the
// group's coordinator: every record that was acknowledged is there once and in
// order, the group goes on from what it committed.
func TestKafkaLoadThroughFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("whole nodes under faults")
	}
	for _, f := range []struct {
		name string
		hit  func(c *kafkaCluster, id int)
		heal func(c *kafkaCluster, id int)
		// readers: the group goes on before the node is healed. franz-go asks a
		// coordinator that takes connections and answers nothing again and again.
		readers bool
	}{
		{"kill", (*kafkaCluster).kill, (*kafkaCluster).restart, true},
		{"stop", (*kafkaCluster).halt, (*kafkaCluster).restart, true},
		{"restart", (*kafkaCluster).restart, func(*kafkaCluster, int) {}, true},
		{"pause", (*kafkaCluster).pause, (*kafkaCluster).resume, false},
	} {
		t.Run(f.name, func(t *testing.T) {
			c := startKafka(t, 3)
			const group = "readers"
			l := c.startLoad("t", group, 6, 3)
			l.goesOn("at first", true)
			for _, victim := range []struct {
				what string
				id   func() int
			}{
				{"a leader that does not coordinate", func() int { return c.coordinator(group)%3 + 1 }},
				{"the coordinator", func() int { return c.coordinator(group) }},
			} {
				id := victim.id()
				f.hit(c, id)
				l.goesOn("without "+victim.what, f.readers)
				f.heal(c, id)
				c.WaitServing(t)
				l.goesOn("with "+victim.what+" again", true)
			}
			l.finish()
		})
	}
}

func (c *kafkaCluster) kill(id int)   { c.Kill(id) }
func (c *kafkaCluster) halt(id int)   { c.Stop(id) }
func (c *kafkaCluster) resume(id int) { c.Resume(id) }

func (c *kafkaCluster) restart(id int) {
	c.Restart(id)
	c.WaitServing(c.t)
}

// pause lasts until others have the node's place.
func (c *kafkaCluster) pause(id int) {
	c.t.Helper()
	n, ok := c.View().Node(c.Node(id).ID)
	if !ok {
		c.t.Fatalf("node %d is not registered", id)
	}
	c.Pause(id)
	c.eventually("the paused node is replaced", func() bool {
		w, ok := c.View().WAL(n.Epoch)
		return ok && w.Sealed
	})
}
