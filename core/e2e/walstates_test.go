package e2e

import (
	"testing"
)

// walStates are how far the write-ahead log has become stream objects when the
// node is killed.
var walStates = []struct {
	name     string
	interval string // wal_upload_interval
	first    bool   // the first half is uploaded
	second   bool   // and so is the second
}{
	{"not uploaded", "1h", false, false},
	{"half uploaded", "6s", true, false},
	{"fully uploaded", "100ms", true, true},
}

// story writes in two halves and reads back.
type story struct {
	flags         []string
	prepare       func(*node) // may be nil
	first, second func(*node)
	check         func(n *node, when string)
}

// inEveryWALState tells a story once per state, kills the node in it, and
// checks before the kill, after the restart, and after a second kill of the
// node that recovered.
func inEveryWALState(t *testing.T, s story) {
	t.Helper()
	t.Parallel()
	for _, state := range walStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, append(s.flags, "--wal-upload-interval", state.interval)...)
			n.start()
			if s.prepare != nil {
				s.prepare(n)
			}
			s.first(n)
			if state.first {
				n.uploaded()
			}
			s.second(n)
			if state.second {
				n.uploaded()
			}
			pinned, objects := n.figure("mink_log_cache_pinned_bytes") > 0, n.figure("mink_stream_objects_total") > 0
			if pinned == state.second || objects != state.first {
				t.Fatalf("the log is not %s at the kill: pinned %v, stream objects %v", state.name, pinned, objects)
			}
			s.check(n, "before the kill")
			n.kill()
			n.start()
			s.check(n, "after kill -9")
			n.kill()
			n.start()
			s.check(n, "after the second kill -9")
			n.fsck()
			n.stop()
		})
	}
}

// uploaded waits until every record is in a stream object.
func (n *node) uploaded() {
	n.t.Helper()
	eventually(n.t, "every record is in a stream object", func() bool {
		return n.figure("mink_log_cache_pinned_bytes") == 0
	})
}

// fsck fails the test when the check finds a problem.
func (n *node) fsck() {
	n.t.Helper()
	n.mink(nil, "fsck", "--deep")
}
