package client

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
)

// TestCloseBesideCalls: a call on a connection that is closed meanwhile fails, it does
// not race with the closing (run it with -race).
func TestCloseBesideCalls(t *testing.T) {
	cfg := Default()
	cfg.Bootstrap = []string{"127.0.0.1:1"}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.at("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	began, done := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for i := 0; i < 2 || err == nil; i++ {
			var s flight.FlightService_DoActionClient
			if s, err = conn.DoAction(t.Context(), &flight.Action{Type: "x"}); err == nil {
				_, err = s.Recv()
			}
			if i == 0 {
				close(began)
			}
		}
		done <- err
	}()
	<-began
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Fatal("a call on a closed connection succeeded")
	}
}
