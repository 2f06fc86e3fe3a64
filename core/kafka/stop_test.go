package kafka

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A listener that stops resets connections that had no answer yet: franz-go takes
// an orderly end there for "no Kafka here", which it does not try again after.
func TestStopResetsFreshConnections(t *testing.T) {
	s := startServer(t, nil)
	fresh, used := dial(t, s.addr), dial(t, s.addr)
	used.call(kmsg.NewPtrApiVersionsRequest())
	until(t, "both connections to be served", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.mu.conns) == 2
	})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := fresh.nc.Read(b[:]); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection without an answer: %v", err)
	}
	if _, err := used.nc.Read(b[:]); !errors.Is(err, io.EOF) {
		t.Errorf("a connection with an answer: %v", err)
	}
}
