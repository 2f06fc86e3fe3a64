package ops

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPort(t *testing.T) {
	ready := false
	s := New(slog.New(slog.DiscardHandler), func() (bool, string) { return ready, "recovering" }, func() []Figure {
		return []Figure{
			{Name: "mink_wal_puts_total", Help: "PUTs.", Counter: true, Value: 7},
			{Name: "mink_loop_failures_total", Help: "Failures.", Counter: true, Labels: []string{"loop"}, Values: []string{"upload"}, Value: 2},
		}
	})
	s.Kafka().Request("Produce", 10, 20, time.Millisecond)
	s.Flight().Call("DoPut", "OK", time.Millisecond)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}

	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz answers %d", code)
	}
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, "recovering") {
		t.Errorf("/readyz answers %d %q before the node is ready, want 503 and the reason", code, body)
	}
	ready = true
	if code, _ := get("/readyz"); code != 200 {
		t.Errorf("/readyz answers %d when the node is ready", code)
	}
	_, metrics := get("/metrics")
	for _, want := range []string{
		"mink_wal_puts_total 7", `mink_loop_failures_total{loop="upload"} 2`, `mink_kafka_requests_total{api="Produce"} 1`,
		"mink_kafka_received_bytes_total 10", `mink_flight_calls_total{code="OK",method="DoPut"} 1`, "go_goroutines",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A listener that fails ends Serve, which leaves nothing running behind it.
func TestServeEndsWithItsListener(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := New(slog.New(slog.DiscardHandler), func() (bool, string) { return true, "" }, func() []Figure { return nil })
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // goes on, as the node does
	defer cancel()
	if err := s.Serve(ctx, l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed listener: %v", err)
	}
	goleak.VerifyNone(t, before)
}
