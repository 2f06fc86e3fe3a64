package sqllog_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/metalogtest"
	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/core/metalog/sqllog"
	"github.com/mink-project/mink/sdk/mink"
)

func TestPostgres(t *testing.T) {
	pg := pgtest.Start(t, "fsync=off")
	t.Run("conformance", func(t *testing.T) {
		urls := map[metalog.Log]string{}
		metalogtest.Run(t, metalogtest.Options{
			Open: func(t *testing.T) metalog.Log {
				url := pg.Schema(t)
				l := openURL(t, url)
				urls[l] = url
				return l
			},
			Reopen: func(t *testing.T, closed metalog.Log) metalog.Log { return openURL(t, urls[closed]) },
		})
	})
	t.Run("wakes other processes", func(t *testing.T) { testNotify(t, pg) })
	t.Run("two processes append", func(t *testing.T) { testTwoProcesses(t, pg) })
	t.Run("refusals", func(t *testing.T) { testPostgresRefusals(t, pg) })
	t.Run("newer schema", func(t *testing.T) {
		url := pg.Schema(t)
		check(t, openURL(t, url).Close())
		pg.Exec(t, "INSERT INTO "+schemaOf(t, url)+".meta_schema VALUES (99, 0, 'v9')")
		_, err := sqllog.Open(t.Context(), url, sqllog.Default(), quiet())
		wantErr(t, err, mink.ErrUnsupported)
		wantText(t, err, "schema version 99")
	})
	t.Run("long schema name", func(t *testing.T) {
		long := strings.Repeat("n", 63)
		pg.Exec(t, "CREATE SCHEMA "+long)
		u, err := url.Parse(pg.Schema(t))
		check(t, err)
		q := u.Query()
		q.Set("search_path", long)
		u.RawQuery = q.Encode()
		l := openURL(t, u.String())
		_, err = l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{1}}})
		check(t, err)
		check(t, l.Close())
	})
	t.Run("a process stands still in a transaction", func(t *testing.T) { testStandsStill(t, pg) })
	t.Run("lost responses", func(t *testing.T) { testLostResponses(t, pg) })
	t.Run("restart", func(t *testing.T) { testPostgresRestart(t, pg) }) // last: it cuts all sessions
}

func schemaOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	check(t, err)
	return u.Query().Get("search_path")
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func wantText(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("got error %v, want one that says %q", err, text)
	}
}

func testNotify(t *testing.T, pg *pgtest.Server) {
	url := pg.Schema(t)
	a, b := openURL(t, url), openURL(t, url)
	defer func() { check(t, a.Close()); check(t, b.Close()) }()
	// The listener may not be connected yet: until it is, a wake-up can be lost.
	for i := uint64(0); ; i++ {
		changed := b.Changed(i)
		_, err := a.Append(t.Context(), metalog.Append{Payloads: [][]byte{{1}}})
		check(t, err)
		select {
		case <-changed:
			return
		case <-time.After(100 * time.Millisecond):
			if i > 200 {
				t.Fatal("no notification arrived")
			}
		}
	}
}

// Appends of two processes, alone and with marks, interleave into one chain.
// testStandsStill: who stands still in a transaction, with the head and the lease locked, keeps
// nobody from taking the lease, and has not taken it.
func testStandsStill(t *testing.T, pg *pgtest.Server) {
	url := pg.Schema(t)
	take := func(l metalog.Log, node mink.NodeID, payload func(mink.LeaseEpoch) ([]byte, error)) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e, err := l.Append(ctx, metalog.Append{Payloads: [][]byte{{byte(node)}}, Register: node})
		if err != nil {
			return err
		}
		_, _, err = l.TakeLease(ctx, metalog.TakeLease{Node: node, NodeEpoch: mink.NodeEpoch(e[0].Index), TTL: time.Hour, Payload: payload})
		return err
	}
	still, other := openURL(t, url), openURL(t, url)
	defer func() { check(t, errors.Join(still.Close(), other.Close())) }()
	_, err := other.Append(t.Context(), metalog.Append{Payloads: [][]byte{{9}}}) // its connection is there
	check(t, err)
	err = take(still, 1, func(mink.LeaseEpoch) ([]byte, error) {
		return []byte{2}, take(other, 2, func(mink.LeaseEpoch) ([]byte, error) { return []byte{1}, nil })
	})
	wantErr(t, err, mink.ErrUnavailable)
	lease, _, err := other.ReadLease(t.Context())
	check(t, err)
	if lease.Node != 2 {
		t.Errorf("the lease is node %d's", lease.Node)
	}
}

func testTwoProcesses(t *testing.T, pg *pgtest.Server) {
	url := pg.Schema(t)
	done := make(chan error, 2)
	for w := range 2 {
		go func() {
			l, err := sqllog.Open(t.Context(), url, sqllog.Default(), quiet())
			if err != nil {
				done <- err
				return
			}
			for i := range 30 {
				a := metalog.Append{Payloads: [][]byte{{byte(w)}, {byte(i)}}}
				if i%3 == 0 {
					a.Seal = []mink.NodeEpoch{1}
				}
				if _, err = l.Append(t.Context(), a); err != nil {
					break
				}
			}
			done <- errors.Join(err, l.Close())
		}()
	}
	for range 2 {
		check(t, <-done)
	}
	l := openURL(t, url)
	defer func() { check(t, l.Close()) }()
	es, err := l.Read(t.Context(), 0, 1000, 1<<20)
	check(t, err)
	if len(es) != 120 {
		t.Fatalf("%d entries, want 120", len(es))
	}
	var at metalog.Position
	for _, e := range es {
		if e.Index != at.Index+1 || e.Hash != metalog.Chain(at.Hash, e.Index, e.TimeMs, e.Payload) {
			t.Fatalf("entry %d does not continue %s", e.Index, at)
		}
		at = e.Position()
	}
}

func testPostgresRefusals(t *testing.T, pg *pgtest.Server) {
	open := func(url string) error {
		l, err := sqllog.Open(t.Context(), url, sqllog.Default(), quiet())
		if err == nil {
			check(t, l.Close())
		}
		return err
	}
	pg.Exec(t, "CREATE ROLE lax LOGIN SUPERUSER", "ALTER ROLE lax SET synchronous_commit = off")
	lax := strings.Replace(pg.Schema(t), "postgres@", "lax@", 1)
	err := open(lax)
	wantErr(t, err, mink.ErrInvalid)
	wantText(t, err, "synchronous_commit")

	pg.Exec(t, "CREATE ROLE reader LOGIN", "ALTER ROLE reader SET default_transaction_read_only = on")
	err = open(strings.Replace(pg.Schema(t), "postgres@", "reader@", 1))
	if err == nil {
		t.Fatal("a role that may not write opened the log")
	}
	err = open(strings.Replace(pg.URL(), "/postgres?", "/nowhere?", 1))
	wantErr(t, err, mink.ErrInvalid)
	wantText(t, err, "create the database")
	err = open("postgres://u:secret@127.0.0.1:1/x?sslmode=disable")
	wantErr(t, err, mink.ErrUnavailable)
	wantText(t, err, "cannot connect to the metadata database 127.0.0.1:1/x")
	if strings.Contains(err.Error(), "secret") {
		t.Fatalf("the error shows the password: %v", err)
	}
	err = open("postgres://u:secret@127.0.0.1:port/x")
	wantErr(t, err, mink.ErrInvalid)
	if strings.Contains(err.Error(), "secret") {
		t.Fatalf("the error shows the password: %v", err)
	}
}

// With several hosts in the URL the log is where the primary is: the first host is a
// standby once it was failed over from.
func TestPostgresStandby(t *testing.T) {
	primary, standby := pgtest.Start(t, "fsync=off"), pgtest.Start(t, "fsync=off")
	check(t, standby.Standby(t.Context()))
	both := strings.Replace(primary.Schema(t), "@"+primary.Addr(), "@"+standby.Addr()+","+primary.Addr(), 1)
	l := openURL(t, both)
	for i := range byte(3) {
		_, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{i + 1}}})
		check(t, err)
	}
	head, err := l.Head(t.Context())
	check(t, err)
	if head.Index != 3 {
		t.Errorf("the head is at %s, want index 3", head)
	}
	check(t, l.Close())
	_, err = sqllog.Open(t.Context(), standby.URL(), sqllog.Default(), quiet())
	wantErr(t, err, mink.ErrUnavailable)
	wantText(t, err, "standby")
}

// A crash of the database loses nothing acknowledged, and the log goes on by
// itself when it is back.
func testPostgresRestart(t *testing.T, pg *pgtest.Server) {
	l := openURL(t, pg.Schema(t))
	defer func() { check(t, l.Close()) }()
	es, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{1}, {2}}})
	check(t, err)
	check(t, pg.Down("QUIT"))
	if _, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{3}}}); !errors.Is(err, mink.ErrUnavailable) && !errors.Is(err, mink.ErrUnknownOutcome) {
		t.Fatalf("append to a database that is down: %v", err)
	}
	_, err = l.Head(t.Context())
	wantErr(t, err, mink.ErrUnavailable)
	check(t, pg.Up(t.Context()))
	for range 10 { // pooled connections that died show one by one
		if _, err = l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{4}}}); err == nil {
			break
		}
	}
	check(t, err)
	got, err := l.Read(t.Context(), 0, 10, 1000)
	check(t, err)
	if len(got) < 3 || got[0].Position() != es[0].Position() || got[1].Position() != es[1].Position() {
		t.Fatalf("after the crash the log is %v, acknowledged was %v", got, es)
	}
}
