// Package pgtest runs a throw-away Postgres for tests: its own data directory,
// a socket and a free loopback port, gone at the end. Postgres refuses to run
// as root, so a root test runs it as the user postgres.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// RequiredEnv, set to "required", turns a missing Postgres from a skipped test
// into a failed one.
const RequiredEnv = "MINK_TEST_POSTGRES"

// ErrNotInstalled: no initdb was found.
var ErrNotInstalled = errors.New("postgres is not installed (looked for initdb on PATH and in /usr/lib/postgresql/*/bin); on Debian: apt-get install postgresql")

// startTimeout covers initdb and the start on a busy machine.
const startTimeout = 60 * time.Second

// Server is a running Postgres. Its superuser is "postgres", without password,
// reachable from this machine only.
type Server struct {
	bin, root string
	port      int
	settings  []string
	cmd       *exec.Cmd
	stdin     io.WriteCloser
	output    *bytes.Buffer
	schemas   atomic.Int64
}

// Start launches a server that ends with the test. Settings are "name=value".
// Without an installed Postgres the test is skipped, or fails under RequiredEnv.
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s, err := Launch(tb.Context(), settings...)
	if errors.Is(err, ErrNotInstalled) && os.Getenv(RequiredEnv) != "required" {
		tb.Skipf("LEFT OUT: %v", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Launch is Start without a test, for TestMain and programs; Close ends it.
func Launch(ctx context.Context, settings ...string) (*Server, error) {
	bin, err := findBin()
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "minkpg")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, root: root, settings: settings}
	if err := s.init(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(root))
	}
	if err := s.Up(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(root))
	}
	return s, nil
}

func findBin() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", ErrNotInstalled
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1]), nil
}

// command runs a program as a user that Postgres accepts.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if os.Geteuid() == 0 {
		args = append([]string{"--reuid=postgres", "--regid=postgres", "--clear-groups", name}, args...)
		name = "setpriv"
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.root
	return cmd
}

func (s *Server) init(ctx context.Context) error {
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return fmt.Errorf("run postgres as root's stand-in: %w", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(s.root, uid, gid); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	out, err := s.command(ctx, filepath.Join(s.bin, "initdb"), "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.root, "data") }

// watch runs Postgres and stops it with the signal that is written to its
// input, or INT when the input ends because the test process died.
const watch = `"$@" & pid=$!; sig=INT; read -r line && sig=$line; kill -"$sig" "$pid"; wait "$pid"`

// Up starts the server after Down; on the same port.
func (s *Server) Up(ctx context.Context) error {
	if s.port == 0 {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		s.port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return err
		}
	}
	args := []string{"-c", watch, "sh", filepath.Join(s.bin, "postgres"), "-D", s.data(), "-k", s.root, "-p", strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1"}
	for _, set := range s.settings {
		args = append(args, "-c", set)
	}
	cmd := s.command(context.WithoutCancel(ctx), "sh", args...)
	s.output = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = s.output, s.output
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.cmd, s.stdin = cmd, stdin
	if err := s.awaitReady(ctx); err != nil {
		_ = s.Down("INT") // the reason why it is not ready is the one to report
		return fmt.Errorf("%w\n%s", err, s.output)
	}
	return nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("postgres did not become ready: %w", err)
		}
	}
}

// Down stops the server and waits: INT cuts sessions and shuts down cleanly,
// QUIT crashes it, so that the next Up recovers from the WAL.
func (s *Server) Down(signal string) error {
	if s.cmd == nil {
		return nil
	}
	_, err := io.WriteString(s.stdin, signal+"\n")
	err = errors.Join(err, s.stdin.Close())
	_ = s.cmd.Wait() // Postgres' exit code says no more than that it ended
	s.cmd = nil
	return err
}

// Standby restarts the server as a standby, which answers questions and takes no writes.
func (s *Server) Standby(ctx context.Context) error {
	if err := s.Down("INT"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644); err != nil { //nolint:gosec // Postgres' own user reads it
		return err
	}
	return s.Up(ctx)
}

// Close stops the server and removes its files.
func (s *Server) Close() error {
	return errors.Join(s.Down("INT"), os.RemoveAll(s.root))
}

// URL is the connection URL of the superuser's database.
func (s *Server) URL() string { return s.urlWith(nil) }

// Addr is the server's TCP address.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *Server) urlWith(q url.Values) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: s.Addr(), Path: "/postgres"}
	if q == nil {
		q = url.Values{}
	}
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

// Schema makes a fresh schema and answers a URL whose tables go there: a new
// database for the price of a statement.
func (s *Server) Schema(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("s%d", s.schemas.Add(1))
	s.Exec(tb, "CREATE SCHEMA "+name)
	return s.urlWith(url.Values{"search_path": {name}})
}

// Exec runs statements as the superuser.
func (s *Server) Exec(tb testing.TB, statements ...string) {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context())
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		tb.Fatal(err)
	}
	_, err = conn.Exec(ctx, strings.Join(statements, "; "))
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		tb.Fatal(err)
	}
}
