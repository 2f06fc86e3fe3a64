package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/plugintest"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

var server *pgtest.Server // nil: Postgres is not installed

func TestMain(m *testing.M) {
	s, err := pgtest.Launch(context.Background(), "fsync=off", "max_connections=300")
	if err != nil && (!errors.Is(err, pgtest.ErrNotInstalled) || os.Getenv(pgtest.RequiredEnv) == "required") {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server = s
	code := m.Run()
	if s != nil {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// place is a new database, as options.
func newPlace(t *testing.T) map[string]string {
	t.Helper()
	if server == nil {
		t.Skipf("LEFT OUT: %v", pgtest.ErrNotInstalled)
	}
	name := strings.ToLower(strings.NewReplacer("/", "_", "#", "_").Replace(t.Name()))
	if len(name) > 50 {
		name = name[len(name)-50:]
	}
	server.Exec(t, `CREATE DATABASE "`+name+`"`)
	t.Cleanup(func() { server.Exec(t, `DROP DATABASE "`+name+`" WITH (FORCE)`) }) // with the sessions of sinks that nobody ended
	url := strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1)
	if url == server.URL() {
		url = strings.TrimSuffix(server.URL(), "/postgres") + "/" + name
	}
	return map[string]string{"url": url, "state_schema": "mink_sink", "connections": "8", "lock_timeout": "20s"}
}

func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		options := newPlace(t)
		return sinktest.Target{Start: func(ctx context.Context) (sink.Sink, func(), error) {
			s, err := open(ctx, options)
			if err != nil {
				return nil, nil, err
			}
			return s, func() {}, nil // it cannot be ended: it goes on, as one that nobody can stop
		}}
	})
}

// TestConformanceAsPlugin kills real processes.
func TestConformanceAsPlugin(t *testing.T) {
	path := filepath.Join(t.TempDir(), plugin.FilePrefix+"sink-postgres")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		return plugintest.SinkTarget(host.Config{Path: path}, newPlace(t))
	})
}

var testSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64, Metadata: arrow.NewMetadata([]string{mink.MetaFieldID}, []string{"1"})},
	{Name: `odd "name"; --`, Type: arrow.BinaryTypes.String, Nullable: true, Metadata: arrow.NewMetadata([]string{mink.MetaFieldID}, []string{"2"})},
}, nil)

func testSpec(keyed bool) sink.TableSpec {
	s := sink.TableSpec{ID: 7, Database: "shop", Name: "orders", Schema: sink.Schema{ID: 1, Arrow: testSchema}, BucketCount: 1}
	if keyed {
		s.PrimaryKey = []string{"id"}
	}
	return s
}

func testBatch(from, n int64, text string) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, testSchema)
	defer b.Release()
	for i := range n {
		b.Field(0).(*array.Int64Builder).Append(from + i) //nolint:forcetypeassert // of the schema
		b.Field(1).(*array.StringBuilder).Append(text)    //nolint:forcetypeassert // of the schema
	}
	return b.NewRecordBatch()
}

var bucket = mink.BucketRef{Table: 7, Partition: 1}

// round runs one round of three rows on what the sink has, and answers its commit.
func round(ctx context.Context, s *postgres, keyed bool, id sink.RoundID) (sink.CommitRequest, error) {
	var req sink.CommitRequest
	table, err := s.Open(ctx, sink.OpenRequest{Table: testSpec(keyed)})
	if err != nil {
		return req, err
	}
	defer func() { _ = table.Close() }()
	have, err := table.Recover(ctx, sink.RecoverRequest{Fence: 1})
	if err != nil {
		return req, err
	}
	from := have.Committed.Ends[bucket]
	if _, err := table.BeginRound(ctx, sink.BeginRoundRequest{Round: id, Base: have.Committed.Round, Fence: 1}); err != nil {
		return req, err
	}
	batch := testBatch(int64(from), 3, string(id))
	defer batch.Release()
	write := sink.WriteRequest{Bucket: bucket, Batch: batch, Start: from, End: from + 3}
	if keyed {
		write.Changes = []mink.Change{mink.ChangeInsert, mink.ChangeInsert, mink.ChangeInsert}
	}
	if _, err := table.Write(ctx, write); err != nil {
		return req, err
	}
	staged, err := table.Prepare(ctx, sink.PrepareRequest{})
	if err != nil {
		return req, err
	}
	req = sink.CommitRequest{Staged: staged.Staged, Round: id, Base: have.Committed.Round, Fence: 1, Ranges: []sink.Range{{Bucket: bucket, Start: from, End: from + 3}}}
	_, err = table.Commit(ctx, req)
	return req, err
}

func testSink(t *testing.T, options map[string]string) *postgres {
	t.Helper()
	s, err := open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func query[T any](t *testing.T, s *postgres, text string) T {
	t.Helper()
	var v T
	if err := s.pool.QueryRow(t.Context(), text).Scan(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// The connection is cut, or the server says no, at each point of a round: the rows are
// there once after the next attempt, and nothing of the old one is left.
func TestEndedAtEveryPoint(t *testing.T) {
	points := []string{"begin", "write", "prepare", "locked", "merged", "stored", "committed"}
	for _, keyed := range []bool{false, true} {
		for _, how := range []string{"cut", "error"} {
			t.Run(fmt.Sprintf("keyed=%v %s", keyed, how), func(t *testing.T) {
				options := newPlace(t)
				s := testSink(t, options)
				other := testSink(t, options)
				for i, point := range points {
					s.hook = func(at string) error {
						if at != point {
							return nil
						}
						if how == "error" {
							return fmt.Errorf("%w: by the test", sink.ErrUnavailable)
						}
						_, err := other.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
						return err
					}
					first := sink.RoundID(fmt.Sprintf("first-%d", i))
					if _, err := round(t.Context(), s, keyed, first); err == nil && point != "committed" && point != "begin" {
						t.Errorf("%s: the round was not disturbed", point)
					}
					s.hook = nil
					for n := 0; ; n++ { // connections of the pool that were cut are found out one by one
						if _, err := round(t.Context(), s, keyed, sink.RoundID(fmt.Sprintf("again-%d-%d", i, n))); err == nil {
							break
						} else if n > 20 {
							t.Fatal(err)
						}
					}
				}
				rows, ids := query[int64](t, s, `SELECT count(*) FROM shop.orders`), query[int64](t, s, `SELECT count(DISTINCT id) FROM shop.orders`)
				var have sink.Committed
				if err := s.transact(t.Context(), func(tx pgx.Tx) error {
					k, err := s.lock(t.Context(), tx, 7)
					have = k.committed
					return err
				}); err != nil {
					t.Fatal(err)
				}
				if rows != ids || rows != int64(have.Ends[bucket]) || rows < int64(3*len(points)) {
					t.Errorf("%d rows, %d ids, committed up to %d", rows, ids, have.Ends[bucket])
				}
				if left := query[int64](t, s, `SELECT count(*) FROM pg_tables WHERE schemaname = 'mink_sink'`); left != 2 {
					t.Errorf("%d tables of the sink's own, want 2", left)
				}
			})
		}
	}
}

// A commit whose answer is lost is of unknown outcome; asked again it is answered as the
// first time.
func TestLostAnswerOfACommit(t *testing.T) {
	s := testSink(t, newPlace(t))
	for err, want := range map[error]bool{
		&pgconn.PgError{Code: "40001", SeverityUnlocalized: "ERROR"}: true,
		&pgconn.PgError{Code: "57P01", SeverityUnlocalized: "FATAL"}: false,
		errors.New("unexpected EOF"):                                 false,
	} {
		if got := refusedCommit(err); got != want {
			t.Errorf("%v: refused is %v", err, got)
		}
	}
	s.hook = func(at string) error {
		if at == "committed" {
			return fmt.Errorf("%w: the answer was lost", sink.ErrUnknownOutcome)
		}
		return nil
	}
	req, err := round(t.Context(), s, true, "lost")
	if !errors.Is(err, sink.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	s.hook = nil
	table, err := s.Open(t.Context(), sink.OpenRequest{Table: testSpec(true)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Commit(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if n := query[int64](t, s, `SELECT count(*) FROM shop.orders`); n != 3 {
		t.Errorf("%d rows", n)
	}
}

// Postgres crashes between Prepare and Commit: the round is committed after it, whole; or
// not at all, when rows of it are gone.
func TestPostgresCrashesBeforeCommit(t *testing.T) {
	if server == nil {
		t.Skipf("LEFT OUT: %v", pgtest.ErrNotInstalled)
	}
	own := pgtest.Start(t)
	options := map[string]string{"url": own.URL(), "state_schema": "mink_sink", "connections": "8", "lock_timeout": "20s"}
	for id, spoil := range map[sink.RoundID]string{"r1": "", "r2": `DELETE FROM mink_sink.%s WHERE seq = 1`} {
		s := testSink(t, options)
		s.hook = func(at string) error {
			if at != "locked" {
				return nil
			}
			return fmt.Errorf("%w: not yet", sink.ErrUnavailable)
		}
		req, err := round(t.Context(), s, false, id)
		if !errors.Is(err, sink.ErrUnavailable) || len(req.Staged) == 0 {
			t.Fatal(err)
		}
		if spoil != "" {
			own.Exec(t, fmt.Sprintf(spoil, stagingName(testSpec(false).ID, id)))
		}
		if err := errors.Join(own.Down("QUIT"), own.Up(t.Context())); err != nil {
			t.Fatal(err)
		}
		again := testSink(t, options)
		table, err := again.Open(t.Context(), sink.OpenRequest{Table: testSpec(false)})
		if err != nil {
			t.Fatal(err)
		}
		before := query[int64](t, again, `SELECT count(*) FROM shop.orders`)
		_, err = table.Commit(t.Context(), req)
		added := query[int64](t, again, `SELECT count(*) FROM shop.orders`) - before
		if spoil == "" && (err != nil || added != 3) || spoil != "" && (!errors.Is(err, sink.ErrNotExist) || added != 0) {
			t.Errorf("commit of %s after the crash: %v, %d rows", id, err, added)
		}
	}
}

// Postgres comes up again when it crashes right after a round was given up, before it has
// written down that it was.
func TestPostgresCrashesAfterARoundIsGivenUp(t *testing.T) {
	if server == nil {
		t.Skipf("LEFT OUT: %v", pgtest.ErrNotInstalled)
	}
	own := pgtest.Start(t, "wal_writer_delay=10s", "fsync=off")
	s := testSink(t, map[string]string{"url": own.URL(), "state_schema": "mink_sink", "connections": "8", "lock_timeout": "20s"})
	table, err := s.Open(t.Context(), sink.OpenRequest{Table: testSpec(false)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Recover(t.Context(), sink.RecoverRequest{Fence: 1}); err != nil {
		t.Fatal(err)
	}
	own.Exec(t, "CREATE TABLE other (i int)", "CHECKPOINT")
	if _, err := table.BeginRound(t.Context(), sink.BeginRoundRequest{Round: "r1", Fence: 1}); err != nil {
		t.Fatal(err)
	}
	own.Exec(t, "INSERT INTO other VALUES (1)") // writes the log up to here
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(own.Down("QUIT"), own.Up(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func TestRefused(t *testing.T) {
	options := newPlace(t)
	s := testSink(t, options)
	with := func(name string, change func(*sink.TableSpec)) {
		t.Helper()
		spec := testSpec(false)
		change(&spec)
		if _, err := s.Open(t.Context(), sink.OpenRequest{Table: spec}); err == nil {
			t.Errorf("%s: opened", name)
		} else if !errors.Is(err, sink.ErrUnimplemented) && !errors.Is(err, sink.ErrInvalid) && !errors.Is(err, sink.ErrAlreadyExists) {
			t.Errorf("%s: %v", name, err)
		}
	}
	field := func(name string, t arrow.DataType) func(*sink.TableSpec) {
		return func(s *sink.TableSpec) {
			s.Schema.Arrow = arrow.NewSchema([]arrow.Field{{Name: name, Type: t, Metadata: arrow.NewMetadata([]string{mink.MetaFieldID}, []string{"1"})}}, nil)
		}
	}
	with("a long name", field(strings.Repeat("x", 64), arrow.PrimitiveTypes.Int64))
	with("a system column", field("ctid", arrow.PrimitiveTypes.Int64))
	with("a key of floats", func(s *sink.TableSpec) {
		field("f", arrow.PrimitiveTypes.Float64)(s)
		s.PrimaryKey = []string{"f"}
	})
	with("an unknown option", func(s *sink.TableSpec) { s.Options = map[string]string{"tabel": "x"} })
	with("the sink's own schema", func(s *sink.TableSpec) { s.Options = map[string]string{"schema": "mink_sink"} })
	if _, err := s.pool.Exec(t.Context(), `CREATE SCHEMA shop; CREATE TABLE shop.orders (mine int)`); err != nil {
		t.Fatal(err)
	}
	with("a table of somebody's", func(*sink.TableSpec) {})
	if err := s.makeState(t.Context()); err != nil { // again: nothing is made
		t.Error(err)
	}
	for name, change := range map[string]map[string]string{
		"url": {"url": "postgres://%zz"}, "connections": {"connections": "1"}, "lock_timeout": {"lock_timeout": "soon"}, "state_schema": {"state_schema": ""},
	} {
		bad := map[string]string{}
		for k, v := range options {
			bad[k] = v
		}
		for k, v := range change {
			bad[k] = v
		}
		if _, err := open(t.Context(), bad); !errors.Is(err, sink.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	batch := testBatch(0, 1, "a\x00b")
	defer batch.Release()
	spec := testSpec(false)
	spec.ID, spec.Name = 8, "zero"
	table, err := s.Open(t.Context(), sink.OpenRequest{Table: spec})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.BeginRound(t.Context(), sink.BeginRoundRequest{Round: "z", Fence: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Write(t.Context(), sink.WriteRequest{Bucket: mink.BucketRef{Table: 8, Partition: 1}, Batch: batch, End: 1}); !errors.Is(err, sink.ErrInvalid) || !strings.Contains(err.Error(), "zero byte") {
		t.Errorf("a zero byte: %v", err)
	}
	if err := table.Close(); err != nil {
		t.Error(err)
	}
}

// Only the row lock keeps two workers apart: the second commit on one base is a conflict.
func TestTwoCommitsOnOneBase(t *testing.T) {
	options := newPlace(t)
	s, other := testSink(t, options), testSink(t, options)
	if _, err := round(t.Context(), other, false, "zero"); err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	s.hook = func(at string) error {
		if at == "merged" {
			close(entered)
			<-leave
		}
		return nil
	}
	first := make(chan error, 1)
	go func() {
		_, err := round(t.Context(), s, false, "one")
		first <- err
	}()
	<-entered
	second := make(chan error, 1)
	go func() { // waits for the lock, then sees the other's round
		table, err := other.Open(t.Context(), sink.OpenRequest{Table: testSpec(false)})
		if err == nil {
			_, err = table.Commit(t.Context(), sink.CommitRequest{Round: "two", Base: "zero", Fence: 1, Staged: []byte(`{"staging":"` + stagingName(7, "two") + `"}`),
				Ranges: []sink.Range{{Bucket: bucket, Start: 3, End: 6}}})
		}
		second <- err
	}()
	close(leave)
	if err := <-first; err != nil {
		t.Errorf("the first: %v", err)
	}
	if err := <-second; !errors.Is(err, sink.ErrConflict) {
		t.Errorf("the second: %v", err)
	}
}
