package storehead_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/core/metalog/sqllog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newStore() objstore.Store { return memstore.New(memstore.Config{}) }

func open(t *testing.T, log metalog.Log, objects, wal objstore.Store, accept string) (*metalog.Replica, *storehead.Keeper, error) {
	t.Helper()
	return storehead.Open(t.Context(), storehead.Deps{Objects: objects, WALStore: wal, Log: log, Logger: quiet()}, metalog.Default(), accept)
}

func mustOpen(t *testing.T, log metalog.Log, store objstore.Store) *storehead.Keeper {
	t.Helper()
	_, k, err := open(t, log, store, store, "")
	check(t, err)
	return k
}

// refused opens a pair that must not go together and answers the token that would
// accept it.
func refused(t *testing.T, log metalog.Log, objects, wal objstore.Store, texts ...string) (token string) {
	t.Helper()
	_, _, err := open(t, log, objects, wal, "")
	if !errors.Is(err, storehead.ErrMismatch) {
		t.Fatalf("got error %v, want %v", err, storehead.ErrMismatch)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
	m := regexp.MustCompile(`--accept-metadata=([0-9a-f]{16});`).FindStringSubmatch(err.Error())
	if m == nil {
		t.Fatalf("no way out in: %v", err)
	}
	return m[1]
}

var entries atomic.Uint64

// grow appends entries that change nothing, each with bytes of its own.
func grow(t *testing.T, log metalog.Log, n int) {
	t.Helper()
	for range n {
		payload, err := metalog.EncodeBatch(metalog.Default(), &clusterpb.Batch{Counter: entries.Add(1)})
		check(t, err)
		_, err = log.Append(t.Context(), metalog.Append{Payloads: [][]byte{payload}})
		check(t, err)
	}
}

// keepNow moves the head on to the log's head.
func keepNow(t *testing.T, log metalog.Log, store objstore.Store) {
	t.Helper()
	check(t, mustOpen(t, log, store).Keep(t.Context()))
}

func stored(t *testing.T, store objstore.Store) (h storehead.Head, found bool) {
	t.Helper()
	r, err := store.GetRange(t.Context(), objstore.GetRangeRequest{Key: storehead.Key, Length: -1})
	if errors.Is(err, objstore.ErrNotExist) {
		return h, false
	}
	check(t, err)
	h, err = storehead.Decode(r.Data)
	check(t, err)
	return h, true
}

func TestANewPairIsTiedTogether(t *testing.T) {
	log, store := memlog.New(), newStore()
	replica, k, err := open(t, log, store, store, "")
	check(t, err)
	h, _ := stored(t, store)
	if h.Incarnation == 0 || h.Pending || h.Incarnation != replica.View().Incarnation() || h.Incarnation != k.Incarnation() || h.Position != replica.Applied() {
		t.Fatalf("the store holds %+v, the metadata incarnation %x at %s", h, replica.View().Incarnation(), replica.Applied())
	}
	grow(t, log, 3)
	again := mustOpen(t, log, store)
	if again.Incarnation() != k.Incarnation() {
		t.Error("a restart made a new incarnation")
	}
	if after, _ := stored(t, store); after != h {
		t.Error("a start of its own moves the head")
	}
}

func TestTheHeadMovesOn(t *testing.T) {
	log, store := memlog.New(), newStore()
	keepNow(t, log, store)
	grow(t, log, 5)
	k := mustOpen(t, log, store)
	before, err := k.Covered(t.Context())
	check(t, err)
	check(t, k.Keep(t.Context()))
	after, err := k.Covered(t.Context())
	check(t, err)
	if head, _ := log.Head(t.Context()); after != head.Index || before != after-5 {
		t.Errorf("remembered %d, then %d of %s", before, after, head)
	}
	grow(t, log, 5)
	keepNow(t, log, store)
	check(t, k.Keep(t.Context())) // behind: another node has kept a newer one
	if now, _ := k.Covered(t.Context()); now != after+5 {
		t.Errorf("a lagging node took the head back to %d", now)
	}
	_, err = store.DeleteBatch(t.Context(), []string{storehead.Key})
	check(t, err)
	if now, err := k.Covered(t.Context()); err != nil || now != 0 {
		t.Errorf("without the object %d is remembered (%v)", now, err)
	}
	check(t, k.Keep(t.Context()))
	if now, _ := k.Covered(t.Context()); now != after {
		t.Errorf("written anew at %d, want %d", now, after)
	}
}

// What a restored database looks like: shorter, regrown to the same length or
// past it, or from before the pair was tied together.
func TestADatabaseThatWentBackIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		to     uint64
		regrow int
		want   []string
		back   bool
	}{
		"shorter":             {7, 0, []string{"went back", "at 11 ", "at 7 ", "restore or promote the newest"}, true},
		"regrown to the head": {7, 4, []string{"went back"}, true},
		"regrown past it":     {7, 9, []string{"went back"}, true},
		"before its identity": {0, 0, []string{"incarnation 0000000000000000 at index 0", "restore its newest backup"}, false},
		"a new one":           {0, 20, []string{"belongs to metadata of incarnation"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			log, store := memlog.New(), newStore()
			mustOpen(t, log, store)
			grow(t, log, 10)
			k := mustOpen(t, log, store)
			check(t, k.Keep(t.Context()))
			log.Rewind(c.to)
			grow(t, log, c.regrow)
			token := refused(t, log, store, store, c.want...)
			_, _, err := open(t, log, store, store, "0123456789abcdef")
			if !errors.Is(err, storehead.ErrMismatch) || errors.Is(err, metalog.ErrWentBack) != c.back {
				t.Errorf("with another token: %v", err)
			}
			head, _ := log.Head(t.Context())
			_, accepted, err := open(t, log, store, store, token)
			check(t, err)
			if accepted.Incarnation() == k.Incarnation() {
				t.Error("the incarnation is the old one")
			}
			if err := k.Keep(t.Context()); !errors.Is(err, storehead.ErrMismatch) {
				t.Errorf("a process of the old incarnation keeps its head: %v", err)
			}
			if _, err := k.Covered(t.Context()); !errors.Is(err, storehead.ErrMismatch) {
				t.Errorf("a process of the old incarnation may delete: %v", err)
			}
			check(t, accepted.Keep(t.Context()))
			mustOpen(t, log, store)
			// A token that stays in a configuration accepts nothing else.
			grow(t, log, 3)
			keepNow(t, log, store)
			log.Rewind(head.Index + 2)
			_, _, err = open(t, log, store, store, token)
			if !errors.Is(err, storehead.ErrMismatch) {
				t.Errorf("the old token accepts another loss: %v", err)
			}
		})
	}
}

// A restore ties the stores to metadata, whether the two fit or not, and seals who
// was registered, so that no heartbeat of before is taken.
func TestAdopt(t *testing.T) {
	for name, fits := range map[string]bool{"they fit": true, "the database went back": false} {
		t.Run(name, func(t *testing.T) {
			log, store, wal := memlog.New(), newStore(), newStore()
			_, before, err := open(t, log, store, wal, "")
			check(t, err)
			register, err := metalog.EncodeBatch(metalog.Default(), &clusterpb.Batch{Commands: []*clusterpb.Command{{
				Kind: &clusterpb.Command_RegisterNode{RegisterNode: &clusterpb.RegisterNode{Node: 1, Nonce: 7, FeatureLevel: 1}}}}})
			check(t, err)
			es, err := log.Append(t.Context(), metalog.Append{Payloads: [][]byte{register}, Register: 1})
			check(t, err)
			epoch := mink.NodeEpoch(es[0].Index)
			if !fits {
				grow(t, log, 3)
				_, k, err := open(t, log, store, wal, "")
				check(t, err)
				check(t, k.Keep(t.Context()))
				log.Rewind(es[0].Index)
			}
			looked := 0
			replica, err := storehead.Adopt(t.Context(), storehead.Deps{
				Objects: store, WALStore: wal, Log: log, Logger: quiet(),
				FindLost: func(_ context.Context, state *cluster.State, incarnation uint64) (*clusterpb.SetIncarnation, error) {
					if looked++; state.Index() != es[0].Index {
						t.Errorf("looked for what the state at %d lacks", state.Index())
					}
					return &clusterpb.SetIncarnation{Incarnation: incarnation, Lost: true}, nil
				},
			}, metalog.Default())
			check(t, err)
			view := replica.View()
			w, _ := view.WAL(epoch)
			if view.Incarnation() == before.Incarnation() || view.TimeLine() != view.Index() || !w.Sealed || looked != 1 {
				t.Errorf("incarnation %x, time line from %d at %d, %+v, looked %d times", view.Incarnation(), view.TimeLine(), view.Index(), w, looked)
			}
			if _, err := log.Heartbeat(t.Context(), 1, epoch, 1); !errors.Is(err, mink.ErrFenced) {
				t.Errorf("a node of before lives on: %v", err)
			}
			_, after, err := open(t, log, store, wal, "")
			check(t, err)
			if after.Incarnation() != view.Incarnation() {
				t.Error("the next start made another incarnation")
			}
			if h, found, err := storehead.Look(t.Context(), wal); err != nil || !found || h.Incarnation != view.Incarnation() {
				t.Errorf("the write-ahead store says %+v %v", h, err)
			}
		})
	}
}

func TestKeepsAtOnce(t *testing.T) {
	log, store := memlog.New(), newStore()
	mustOpen(t, log, store)
	for range 50 {
		grow(t, log, 1)
		k := mustOpen(t, log, store)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := k.Keep(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// A holder that fell behind and meets a database with another history does not
// write over the memory of the true one.
func TestKeepOverwritesNoOtherHistory(t *testing.T) {
	log, store := memlog.New(), newStore()
	mustOpen(t, log, store)
	lagging := mustOpen(t, log, store)
	grow(t, log, 4)
	keepNow(t, log, store)
	before, _ := stored(t, store)
	log.Rewind(1)
	grow(t, log, 8)
	// A replica that never saw the lost entries.
	replica, err := metalog.Open(t.Context(), log, metalog.Default(), quiet())
	check(t, err)
	check(t, lagging.Keep(t.Context())) // at its old place, below the head
	if err := storehead.KeeperOf(store, log, replica, lagging.Incarnation()).Keep(t.Context()); !errors.Is(err, metalog.ErrWentBack) {
		t.Errorf("kept over another history: %v", err)
	}
	if now, _ := stored(t, store); now != before {
		t.Errorf("the store holds %+v, was %+v", now, before)
	}
}

// A second node whose file:// store is its own, on the database of the first.
func TestASecondStoreIsRefused(t *testing.T) {
	log, store := memlog.New(), newStore()
	mustOpen(t, log, store)
	grow(t, log, 2)
	empty := newStore()
	refused(t, log, empty, empty, "this store does not", "point storage_uri at the store that the cluster's other nodes use", "meta_url")
	if _, found := stored(t, empty); found {
		t.Error("the refused start left something in its store")
	}
	other := newStore()
	mustOpen(t, memlog.New(), other)
	refused(t, log, other, other, "belongs to metadata of incarnation")
	mustOpen(t, log, store)
}

// Nobody accepts anything over the head of a node that runs.
func TestNothingIsAcceptedWhileANodeRuns(t *testing.T) {
	log, store := memlog.New(), newStore()
	mustOpen(t, log, store)
	register, err := metalog.EncodeBatch(metalog.Default(), &clusterpb.Batch{Commands: []*clusterpb.Command{{
		Kind: &clusterpb.Command_RegisterNode{RegisterNode: &clusterpb.RegisterNode{Node: 1, Nonce: 7, FeatureLevel: 1}}}}})
	check(t, err)
	es, err := log.Append(t.Context(), metalog.Append{Payloads: [][]byte{register}, Register: 1})
	check(t, err)
	lease, _, err := log.TakeLease(t.Context(), metalog.TakeLease{
		Node: 1, NodeEpoch: mink.NodeEpoch(es[0].Index), TTL: time.Hour,
		Payload: func(mink.LeaseEpoch) ([]byte, error) {
			return metalog.EncodeBatch(metalog.Default(), &clusterpb.Batch{})
		},
	})
	check(t, err)
	empty := newStore()
	token := refused(t, log, empty, empty)
	_, _, err = open(t, log, empty, empty, token)
	if !errors.Is(err, storehead.ErrMismatch) || !strings.Contains(err.Error(), "node 1 runs") {
		t.Errorf("accepted beside a running node: %v", err)
	}
	check(t, log.ReleaseLease(t.Context(), lease))
	_, _, err = open(t, log, empty, empty, token)
	check(t, err)
}

func TestADamagedObjectIsRefused(t *testing.T) {
	whole := storehead.Head{Incarnation: 5, Position: metalog.Position{Index: 1}}.Encode()
	for n := range whole {
		log, store := memlog.New(), newStore()
		mustOpen(t, log, store)
		_, err := store.Put(t.Context(), objstore.PutRequest{Key: storehead.Key, Chunks: [][]byte{whole[:n]}}) // torn
		check(t, err)
		token := refused(t, log, store, store, "damaged")
		_, _, err = open(t, log, store, store, token)
		check(t, err)
		mustOpen(t, log, store)
	}
	log, store := memlog.New(), newStore()
	k := mustOpen(t, log, store)
	newer := append([]byte(nil), whole...)
	newer[4] = 2
	_, err := store.Put(t.Context(), objstore.PutRequest{Key: storehead.Key, Chunks: [][]byte{newer}})
	check(t, err)
	if _, _, err := open(t, log, store, store, ""); !errors.Is(err, mink.ErrUnsupported) || errors.Is(err, storehead.ErrMismatch) {
		t.Errorf("a newer version: %v", err)
	}
	if err := k.Keep(t.Context()); !errors.Is(err, mink.ErrUnsupported) {
		t.Errorf("overwrites a newer version: %v", err)
	}
}

func TestTheWALStoreBelongsToTheCluster(t *testing.T) {
	log, store, wal := memlog.New(), newStore(), newStore()
	_, _, err := open(t, log, store, wal, "")
	check(t, err)
	_, _, err = open(t, log, store, wal, "")
	check(t, err)
	another := newStore()
	token := refused(t, log, store, another, "write-ahead", "wal_uri", "does not hold")
	foreign := newStore()
	mustOpen(t, memlog.New(), foreign)
	refused(t, log, store, foreign, "write-ahead", "belongs to incarnation")
	refused(t, log, store, another)
	_, _, err = open(t, log, store, another, token)
	check(t, err)
	_, _, err = open(t, log, store, another, "")
	check(t, err)
	refused(t, log, store, wal, "write-ahead")
}

// A node that was started without wal_uri would look for the cluster's acknowledged
// records where they are not, and close its logs as empty.
func TestTheWALStoreIsNotForgotten(t *testing.T) {
	log, store, wal := memlog.New(), newStore(), newStore()
	_, k, err := open(t, log, store, wal, "")
	check(t, err)
	refused(t, log, store, store, "wal_uri", "store of its own")
	check(t, k.Keep(t.Context()))
	refused(t, log, store, store, "wal_uri", "store of its own")

	// What an older binary wrote does not say it: the next start with both does.
	r, err := store.GetRange(t.Context(), objstore.GetRangeRequest{Key: storehead.Key, Length: -1})
	check(t, err)
	h, err := storehead.Decode(r.Data)
	check(t, err)
	h.OwnWAL = false
	_, err = store.Put(t.Context(), objstore.PutRequest{Key: storehead.Key, Chunks: [][]byte{h.Encode()}})
	check(t, err)
	_, _, err = open(t, log, store, wal, "")
	check(t, err)
	token := refused(t, log, store, store, "wal_uri", "store of its own")
	_, _, err = open(t, log, store, store, token)
	check(t, err)
	_, _, err = open(t, log, store, store, "")
	check(t, err)
	refused(t, log, store, newStore(), "wal_uri", "does not hold")
}

// Nodes that start together on one new pair agree; with a store each, one wins.
func TestStartsAtOnce(t *testing.T) {
	for range 20 {
		log, shared := memlog.New(), newStore()
		const n = 6
		var mu sync.Mutex
		got := map[uint64]int{}
		var lost []error
		race := func(store func() objstore.Store) {
			clear(got)
			lost = nil
			var wg sync.WaitGroup
			for range n {
				s := store()
				wg.Go(func() {
					cfg := metalog.Default()
					cfg.RetryBackoff = time.Millisecond
					_, k, err := storehead.Open(t.Context(), storehead.Deps{Objects: s, WALStore: s, Log: log, Logger: quiet()}, cfg, "")
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						lost = append(lost, err)
						return
					}
					got[k.Incarnation()]++
				})
			}
			wg.Wait()
		}
		race(func() objstore.Store { return shared })
		if len(got) != 1 || len(lost) > 0 {
			t.Fatalf("%d incarnations of one store, errors %v", len(got), lost)
		}
		log = memlog.New()
		race(newStore)
		if len(got) != 1 || len(lost) != n-1 {
			t.Fatalf("%d of %d stores belong to one database", len(got), n)
		}
		for _, err := range lost {
			if !errors.Is(err, storehead.ErrMismatch) {
				t.Error(err)
			}
		}
	}
}

// hookedStore calls before once, ahead of the first read of the object.
type hookedStore struct {
	objstore.Store
	before func()
	once   sync.Once
}

func (s *hookedStore) GetRange(ctx context.Context, r objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if r.Key == storehead.Key {
		s.once.Do(s.before)
	}
	return s.Store.GetRange(ctx, r)
}

// Another process ties a new pair together, or moves the head on, after this one
// has read the metadata and before it reads the object.
func TestALateLookAtTheObjectIsNoMismatch(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, log metalog.Log, store objstore.Store){
		"new":   func(*testing.T, metalog.Log, objstore.Store) {},
		"moved": func(t *testing.T, log metalog.Log, store objstore.Store) { keepNow(t, log, store) },
	} {
		t.Run(name, func(t *testing.T) {
			log, store := memlog.New(), newStore()
			before(t, log, store)
			late := &hookedStore{Store: store, before: func() {
				keepNow(t, log, store)
				grow(t, log, 5)
				keepNow(t, log, store)
			}}
			if _, _, err := open(t, log, late, late, ""); err != nil {
				t.Errorf("a node that came late: %v", err)
			}
		})
	}
}

// SQLite and a directory, as one node has them: a copy of the database from
// before is refused; the newest one goes on.
func TestRestoredSQLite(t *testing.T) {
	dir := t.TempDir()
	store, err := dirstore.Open(t.Context(), dirstore.Config{Dir: filepath.Join(dir, "objects")})
	check(t, err)
	defer func() { check(t, store.Close()) }()
	path := filepath.Join(dir, "meta.db")
	session := func(f func(metalog.Log)) {
		t.Helper()
		log, err := sqllog.Open(t.Context(), "sqlite:"+path, sqllog.Default(), quiet())
		check(t, err)
		defer func() { check(t, log.Close()) }()
		f(log)
	}
	copyTo := func(to, from string) {
		t.Helper()
		data, err := os.ReadFile(from)
		check(t, err)
		check(t, os.WriteFile(to, data, 0o600))
	}
	session(func(log metalog.Log) { keepNow(t, log, store); grow(t, log, 3) })
	copyTo(path+".old", path)
	session(func(log metalog.Log) { grow(t, log, 3); keepNow(t, log, store) })
	copyTo(path+".new", path)
	copyTo(path, path+".old")
	var token string
	session(func(log metalog.Log) { token = refused(t, log, store, store, "went back") })
	copyTo(path, path+".new")
	session(func(log metalog.Log) { mustOpen(t, log, store) })
	copyTo(path, path+".old")
	session(func(log metalog.Log) {
		_, _, err := open(t, log, store, store, token)
		check(t, err)
	})
	session(func(log metalog.Log) { mustOpen(t, log, store) })
	copyTo(path, path+".new") // now this is the wrong one
	session(func(log metalog.Log) { refused(t, log, store, store, "belongs to metadata of incarnation") })
}

func FuzzDecode(f *testing.F) {
	f.Add(storehead.Head{Incarnation: 1, Position: metalog.Position{Index: 9, Hash: metalog.Hash{1, 2}}}.Encode())
	f.Add(storehead.Head{Incarnation: 3, Replaces: 2, Pending: true, OwnWAL: true}.Encode())
	f.Add([]byte("MKMH\x02"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := storehead.Decode(data)
		switch {
		case err == nil:
			if string(h.Encode()) != string(data) {
				t.Errorf("%x decodes to %+v, which encodes to %x", data, h, h.Encode())
			}
		case !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnsupported):
			t.Error(err)
		}
	})
}

var errCrash = errors.New("the process is gone")

// crashing ends a process at one of its writes, before or after it lands.
type crashing struct {
	mu   sync.Mutex
	left int // writes before the crash
	late bool
	dead bool
}

func (c *crashing) write(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return errCrash
	}
	if c.left--; c.left >= 0 {
		return do()
	}
	c.dead = true
	if c.late {
		_ = do() // nobody hears of it
	}
	return errCrash
}

type crashStore struct {
	objstore.Store
	c *crashing
}

func (s crashStore) Put(ctx context.Context, req objstore.PutRequest) (resp objstore.PutResponse, err error) {
	err = s.c.write(func() error {
		resp, err = s.Store.Put(ctx, req)
		return err
	})
	return resp, err
}

type crashLog struct {
	metalog.Log
	c *crashing
}

func (l crashLog) Append(ctx context.Context, a metalog.Append) (entries []metalog.Entry, err error) {
	err = l.c.write(func() error {
		entries, err = l.Log.Append(ctx, a)
		return err
	})
	return entries, err
}

// A start that dies at any of its writes is gone on with by the next one, and one
// that was not accepted stays refused.
func TestEveryCrashPoint(t *testing.T) {
	for _, accept := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			points := 0
			for k := 0; ; k++ {
				log, store, wal := memlog.New(), newStore(), newStore()
				token := ""
				if accept {
					_, _, err := open(t, log, store, wal, "")
					check(t, err)
					grow(t, log, 5)
					_, first, err := open(t, log, store, wal, "")
					check(t, err)
					check(t, first.Keep(t.Context()))
					log.Rewind(3)
					token = refused(t, log, store, wal)
				}
				c := &crashing{left: k, late: late}
				_, _, err := open(t, crashLog{log, c}, crashStore{store, c}, crashStore{wal, c}, token)
				if err == nil {
					break // fewer writes than that
				}
				if !errors.Is(err, errCrash) {
					t.Fatal(err)
				}
				points++
				_, keeper, err := open(t, log, store, wal, "")
				if accept && errors.Is(err, storehead.ErrMismatch) { // a person looks again
					_, keeper, err = open(t, log, store, wal, refused(t, log, store, wal))
				}
				if err != nil {
					t.Fatalf("accept %t, crash at write %d (landed %t): %v", accept, k, late, err)
				}
				h, _ := stored(t, store)
				if h.Pending || h.Incarnation != keeper.Incarnation() {
					t.Errorf("accept %t, crash at write %d (landed %t): the store holds %+v", accept, k, late, h)
				}
				_, again, err := open(t, log, store, wal, "")
				check(t, err)
				if again.Incarnation() != keeper.Incarnation() {
					t.Error("the incarnation changes with every start")
				}
			}
			if points < 4 {
				t.Errorf("accept %t: %d crash points, want one per write: head, write-ahead store, log, head", accept, points)
			}
		}
	}
}

// A store that does not answer for a moment delays a start; one that stays away
// ends it, and nothing is said to be wrong with the pair.
func TestAStoreThatHiccups(t *testing.T) {
	for _, c := range []struct {
		name string
		ops  fault.Op
		err  error
	}{
		{"reads", fault.Get, objstore.ErrUnavailable},
		{"writes", fault.Put, objstore.ErrThrottled},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, store := memlog.New(), fault.New(newStore(), fault.Config{})
			defer func() { check(t, store.Close()) }()
			cfg := metalog.Default()
			cfg.RetryBackoff, cfg.RetryBackoffMax = time.Millisecond, time.Millisecond
			start := func(times int) error {
				store.ClearRules()
				store.Inject(fault.Rule{Ops: c.ops, Times: times, Do: fault.FailBefore(c.err)})
				_, _, err := storehead.Open(t.Context(), storehead.Deps{Objects: store, WALStore: store, Log: log, Logger: quiet()}, cfg, "")
				return err
			}
			if err := start(0); !errors.Is(err, c.err) || errors.Is(err, storehead.ErrMismatch) {
				t.Errorf("a store that is away: %v", err)
			}
			check(t, start(3))
		})
	}
}
