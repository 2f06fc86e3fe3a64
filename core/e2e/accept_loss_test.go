package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/api"
)

// A write-ahead object whose index is damaged keeps its node's log from being
// recovered. The node serves the rest, says which records are at stake, and after
// a person gave them up everything else is read back; their offsets are skipped.
func TestAcceptedLoss(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--wal-upload-interval", "1h", "--coordinator-tick", "200ms")
	n.start()
	n.kcat([]byte("before\n"), "-P", "-t", "hit")
	n.kcat([]byte("this one is given up\nand this one\n"), "-P", "-t", "hit")
	n.kcat([]byte("after\n"), "-P", "-t", "hit")
	n.kcat([]byte("sound\n"), "-P", "-t", "beside")
	n.kill()
	object := n.damage("wal", []byte("this one is given up"), func(b []byte, _ int) { b[len(b)-60] ^= 1 })
	name := strings.TrimRight(filepath.Base(object), "~")
	ready := n.start() // it serves without the buckets of that log
	for _, want := range []string{"not all of it is served: ", "kafka.hit bucket 0 (", "kafka.beside bucket 0 (", "accept-loss"} {
		if !strings.Contains(ready, want) {
			t.Errorf("the ready line has no %q: %s", want, ready)
		}
	}
	n.kcat([]byte("new\n"), "-P", "-t", "new")
	const lost = "kafka.hit bucket 0"
	for _, args := range [][]string{{"cluster", "health"}, {"cluster", "accept-loss"}} {
		out, errOut, err := n.tryMink(nil, args...)
		if !strings.Contains(string(out), name) || !strings.Contains(string(out), lost) || !strings.Contains(string(out), "offsets 1 to 2: 2 offsets") {
			t.Errorf("%v: %v, %s%s: want object %s and what it had of %s", args, err, out, errOut, name, lost)
		}
		if notReady := args[1] == "health"; (err != nil) != notReady || notReady && !strings.Contains(string(errOut), "2 buckets are closed: ") {
			t.Errorf("%v: %v %s", args, err, errOut)
		}
	}
	if _, errOut, err := n.tryMink(nil, "read", "kafka.hit"); err == nil || !strings.Contains(string(errOut), "accept-loss") {
		t.Errorf("a read of a closed bucket: %v %s: want what to do", err, errOut)
	}
	if out := n.mink(nil, "cluster", "stats"); !strings.Contains(string(out), "mink_wal_damaged_slots") {
		t.Errorf("the figures lack the damaged slots: %s", quote(out))
	}
	n.fsckFinds(object)

	var look api.LossReport
	if err := json.Unmarshal(n.mink(nil, "cluster", "accept-loss", "--json"), &look); err != nil || len(look.Logs) != 1 || look.Accepted {
		t.Fatalf("%v, %+v", err, look)
	}
	log := fmt.Sprintf("%d/%d", look.Logs[0].Node, look.Logs[0].Epoch)
	for _, args := range [][]string{{"--yes"}, {"1/99", "--yes"}, {"x", "--yes"}, {log, log}} {
		if out, _, err := n.tryMink(nil, append([]string{"cluster", "accept-loss"}, args...)...); err == nil {
			t.Errorf("accept-loss %v: %s", args, out)
		}
	}
	n.mink(nil, "cluster", "accept-loss", log, "--yes")
	eventually(t, "the node serves everything", func() bool { _, _, err := n.tryMink(nil, "cluster", "health"); return err == nil })

	whole := func(want string) {
		t.Helper()
		if got := n.kcat(nil, "-C", "-t", "hit", "-o", "beginning", "-e", "-q", "-f", "%o %s\n"); string(got) != want {
			t.Errorf("the topic has %s, want %q", quote(got), want)
		}
	}
	whole("0 before\n3 after\n")
	if got := n.kcat(nil, "-C", "-t", "hit", "-o", "1", "-e", "-q"); string(got) != "after\n" {
		t.Errorf("from a lost offset on: %s", quote(got))
	}
	n.kcat([]byte("later\n"), "-P", "-t", "hit")
	whole("0 before\n3 after\n4 later\n")
	if got := n.wholeTopic("beside"); string(got) != "sound\n" {
		t.Errorf("the topic beside it has %s", quote(got))
	}
	if out := n.mink(nil, "fsck", "--deep"); !strings.Contains(string(out), "accepted loss: "+lost) || !strings.Contains(string(out), "clean") {
		t.Errorf("fsck: %s: want it clean, with the accepted loss", quote(out))
	}
	n.kill()
	if ready := n.start(); strings.Contains(ready, "not all") {
		t.Errorf("after the loss was accepted: %s", ready)
	}
	whole("0 before\n3 after\n4 later\n")
	n.stop()
}
