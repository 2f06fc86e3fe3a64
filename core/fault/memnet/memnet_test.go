package memnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// Connections behave as net.Conn says.
func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := connect(t, New(Config{}))
		return a, b, func() { _, _ = a.Close(), b.Close() }, nil
	})
}

func connect(t *testing.T, n *Network) (net.Conn, net.Conn) {
	t.Helper()
	return between(t, n.Host("a"), n.Host("b"))
}

// between answers the end of who dials, and the other one.
func between(t *testing.T, a, b *Host) (net.Conn, net.Conn) {
	t.Helper()
	l, err := b.Listen(1)
	if err != nil {
		t.Fatal(err)
	}
	there, err := a.Dial(t.Context(), b.Name()+":1")
	if err != nil {
		t.Fatal(err)
	}
	here, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return there, here
}

// within reads up to n bytes within d: what came, and why no more.
func within(c net.Conn, d time.Duration, n int) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(d))
	buf := make([]byte, n)
	got, err := io.ReadFull(c, buf)
	return string(buf[:got]), err
}

func bubble(t *testing.T, cfg Config, f func(t *testing.T, n *Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, New(cfg)) })
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
}

// A cut holds bytes back in its direction only; healed, they arrive, in order.
func TestCut(t *testing.T) {
	bubble(t, Config{Latency: time.Millisecond}, func(t *testing.T, n *Network) {
		a, b := n.Host("a"), n.Host("b")
		ac, bc := between(t, a, b)
		heal := n.Cut(a.Is, b.Is)
		write(t, ac, "one")
		write(t, bc, "two")
		if got, err := within(ac, time.Second, 3); got != "two" {
			t.Errorf("against the cut comes %q, %v", got, err)
		}
		if got, err := within(bc, time.Minute, 3); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("through the cut comes %q, %v", got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c, err := a.Dial(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a dial through the cut: %v, %v", c, err)
		}
		time.AfterFunc(time.Second, heal)
		write(t, ac, "four")
		if got, err := within(bc, time.Minute, 7); got != "onefour" {
			t.Errorf("after it comes %q, %v", got, err)
		}
		if c := n.Counts(); c[HeldBack] == 0 || c[Unanswered] != 1 {
			t.Errorf("counted %v", c)
		}
	})
}

// The end of a host is heard at once, that of its machine when another one comes.
func TestEndOfAHost(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, n *Network) {
		a, b := n.Host("a"), n.Host("b")
		ac, bc := between(t, a, b)
		b.End()
		if _, err := within(ac, time.Minute, 1); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a read after the other host's end: %v", err)
		}
		if _, err := bc.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write of the ended host: %v", err)
		}
		if _, err := a.Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a dial to it: %v", err)
		}

		b = n.Host("b")
		ac, bc = between(t, a, b)
		write(t, bc, "lost on its way")
		b.Vanish()
		if got, err := within(ac, time.Hour, 1); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a read after the machine's end: %q, %v", got, err)
		}
		write(t, ac, "to nobody")
		n.Host("b")
		if _, err := within(ac, time.Minute, 1); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a read when there is another machine: %v", err)
		}
	})
}

// Each fault by chance happens, and breaks what it says.
func TestChaos(t *testing.T) {
	bubble(t, Config{Seed: 1, Chaos: 0.05, LateMax: time.Second}, func(t *testing.T, n *Network) {
		a, b := n.Host("a"), n.Host("b")
		l, err := b.Listen(1)
		if err != nil {
			t.Fatal(err)
		}
		lost := 0
		for range 500 {
			ac, err := a.Dial(t.Context(), "b:1")
			if err != nil {
				t.Fatal(err)
			}
			bc, _ := l.Accept()
			write(t, ac, "question")
			if got, err := within(bc, time.Minute, 8); err == nil {
				if got != "question" {
					t.Fatalf("%q arrives", got)
				}
				write(t, bc, "answer")
			} else if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			if got, err := within(ac, time.Minute, 6); err != nil {
				lost++
			} else if got != "answer" {
				t.Fatalf("%q comes back", got)
			}
			_, _ = ac.Close(), bc.Close()
		}
		c := n.Counts()
		for _, f := range ByChance {
			if c[f] == 0 {
				t.Errorf("never: %s", f)
			}
		}
		if broken := c[LostRequest] + c[LostResponse] + c[Torn]; lost != broken {
			t.Errorf("%d answers did not come, %d writes broke their connection: %v", lost, broken, c)
		}
		if n.Conns() != 0 {
			t.Errorf("%d connections are left", n.Conns())
		}
	})
}

// What arrives is a beginning of what was written, whatever was written behind a write
// that is torn.
func TestNothingArrivesBehindATornWrite(t *testing.T) {
	bubble(t, Config{Seed: 1, Chaos: 0.3, Latency: 10 * time.Millisecond}, func(t *testing.T, n *Network) {
		for i := range 200 {
			ac, bc := between(t, n.Host(fmt.Sprint("a", i)), n.Host(fmt.Sprint("b", i)))
			want := ""
			for _, text := range []string{"abcd", "efgh", "ijkl", "mnop"} {
				if _, err := ac.Write([]byte(text)); err == nil {
					want += text
				}
			}
			got := make([]byte, 0, 16)
			for one := make([]byte, 1); ; got = append(got, one...) {
				_ = bc.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := bc.Read(one); err != nil {
					break
				}
			}
			if !strings.HasPrefix(want, string(got)) {
				t.Fatalf("%q arrives of %q", got, want)
			}
			_, _ = ac.Close(), bc.Close()
		}
		if n.Counts()[Torn] == 0 {
			t.Error("nothing was torn")
		}
	})
}

// A slow link and latency delay, and change no order.
func TestSlowLink(t *testing.T) {
	bubble(t, Config{Latency: 10 * time.Millisecond}, func(t *testing.T, n *Network) {
		a, b := n.Host("a"), n.Host("b")
		ac, bc := between(t, a, b)
		heal := n.Delay(a.Is, b.Is, time.Minute)
		write(t, ac, "1")
		heal()
		write(t, ac, "2")
		start := time.Now()
		if got, err := within(bc, time.Hour, 2); got != "12" || time.Since(start) < time.Minute {
			t.Errorf("%q after %s, %v", got, time.Since(start), err)
		}
		a.Break()
		if _, err := within(bc, time.Minute, 1); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a read of a broken connection: %v", err)
		}
	})
}
