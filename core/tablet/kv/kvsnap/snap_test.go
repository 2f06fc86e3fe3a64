package kvsnap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

var files = local{
	"000004.sst":                             content(1, 100),
	"000005.sst":                             content(2, ChunkBytes),
	"000006.sst":                             content(3, ChunkBytes+1), // two parts
	"000007.sst":                             content(1, 100),          // the first once more
	"000008.blob":                            content(4, 5000),
	"MANIFEST-000009":                        content(5, 300),
	"OPTIONS-000003":                         []byte("[Version]"),
	"marker.manifest.000001.MANIFEST-000009": {},
	"marker.format-version.000001.013":       {},
	"empty.sst":                              {},
	"a name with spaces and ü that nobody wants": []byte("x"),
}

func with(l local, name string, data []byte) local {
	out := local{name: data}
	for k, v := range l {
		if _, ok := out[k]; !ok {
			out[k] = v
		}
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	store, m := newStore(t), newMeta(t)
	m.append(t, 10)
	u := newUploader(t, store, 1)
	work := t.TempDir()

	first, err := u.Upload(t.Context(), files.write(t, work), 4, 17, nil)
	if err != nil {
		t.Fatal(err)
	}
	if first.Uploaded != 6 || first.Reused != 0 || len(first.Snapshot.Files) != 6 { // four tables, one empty, the head
		t.Fatalf("%+v", first)
	}
	if id, err := Commit(t.Context(), m, 1, first.Snapshot, 2); err != nil || id != 1 {
		t.Fatal(id, err)
	}
	puts, parts := store.Stats().Puts, store.Stats().Parts
	if parts != 2 {
		t.Fatalf("%d parts", parts)
	}

	second := with(with(files, "000010.sst", content(9, 10)), "MANIFEST-000009", content(6, 400))
	delete(second, "000005.sst")
	dir := second.write(t, work)
	if err := os.WriteFile(filepath.Join(work, "unreadable"), nil, 0); err != nil {
		t.Fatal(err)
	}
	hashed := u.hashed["000006.sst"]
	r, err := u.Upload(t.Context(), dir, 9, -1, m.View().KVBucket(1))
	if err != nil {
		t.Fatal(err)
	}
	if r.Uploaded != 2 || r.Reused != 4 || store.Stats().Puts != puts+2 || store.Stats().Parts != parts {
		t.Fatalf("%+v, %+v", r, store.Stats())
	}
	if u.hashed["000006.sst"].info != hashed.info {
		t.Error("a table file was read again")
	}
	if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil {
		t.Fatal(err)
	}
	sound(t, m, store)

	for i, want := range []local{files, second} {
		dir := filepath.Join(t.TempDir(), "restored")
		s := m.View().KVSnapshots(1)[i]
		o, err := Restore(t.Context(), small(), store, testBucket, s, dir)
		if err != nil {
			t.Fatal(err)
		}
		want.equal(t, dir)
		// Whoever restored it uploads the rest only, and reads nothing again.
		next := newUploader(t, store, 2)
		next.Restored(o)
		known := o.files["000006.sst"].info
		r, err := next.Upload(t.Context(), dir, 9, 1, m.View().KVBucket(1))
		if err != nil || r.Uploaded != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		if next.hashed["000006.sst"].info != known {
			t.Error("a restored table file was read again")
		}
	}
}

// A file that changed under its name is not taken for what it was.
func TestHashesAreOfTheFile(t *testing.T) {
	store := newStore(t)
	u := newUploader(t, store, 1)
	l := local{"000001.sst": content(1, 1000), "OPTIONS": nil}
	other := local{"000001.sst": content(2, 1000), "OPTIONS": nil} // of another store, made at the same time
	dirs := []string{l.write(t, t.TempDir()), other.write(t, t.TempDir())}
	for _, dir := range dirs {
		if err := os.Chtimes(filepath.Join(dir, "000001.sst"), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := u.Upload(t.Context(), dirs[0], 1, 1, nil); err != nil {
		t.Fatal(err)
	}
	r, err := u.Upload(t.Context(), dirs[1], 2, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := Restore(t.Context(), small(), store, testBucket, r.Snapshot, dir); err != nil {
		t.Fatal(err)
	}
	other.equal(t, dir)
}

// No request carries more than it may, whatever the files' size, and no more run at
// once than may.
func TestRequestsAreBounded(t *testing.T) {
	mem := memstore.New(memstore.Config{PageMax: 2, PartSizeMin: 5 << 20})
	store := &counting{Store: mem}
	cfg := small()
	u, err := NewUploader(cfg, store, testBucket, 1, 77)
	if err != nil {
		t.Fatal(err)
	}
	l := local{"a.sst": content(1, 14<<20), "b.sst": content(2, 9<<20), "OPTIONS": nil}
	for _, n := range names(20) {
		l[n] = content(uint64(len(l)), 100<<10)
	}
	r, err := u.Upload(t.Context(), l.write(t, t.TempDir()), 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if store.largest > 5<<20 || store.most > cfg.Requests {
		t.Errorf("up: %d bytes in a request, %d requests at once", store.largest, store.most)
	}
	store.largest, store.most = 0, 0
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := Restore(t.Context(), cfg, store, testBucket, r.Snapshot, dir); err != nil {
		t.Fatal(err)
	}
	l.equal(t, dir)
	if store.largest != cfg.RequestBytes || store.most > cfg.Requests {
		t.Errorf("down: %d bytes in a request, %d requests at once", store.largest, store.most)
	}
}

// counting is a store that knows the largest request and the most at once.
type counting struct {
	objstore.Store
	mu           sync.Mutex
	now, most    int
	largest      int64
	withoutParts bool
}

func (c *counting) begin(n int64) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.most, c.largest = max(c.most, c.now), max(c.largest, n)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}
}

func (c *counting) Capabilities() objstore.Capabilities {
	caps := c.Store.Capabilities()
	if c.withoutParts {
		caps.PartSizeMin, caps.PartSizeMax = 0, 0
	}
	return caps
}

func (c *counting) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	defer c.begin(objstore.SizeOf(req.Chunks))()
	return c.Store.Put(ctx, req)
}

func (c *counting) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	defer c.begin(req.Length)()
	return c.Store.GetRange(ctx, req)
}

func (c *counting) parts() objstore.Multiparter { return c.Store.(objstore.Multiparter) }

func (c *counting) StartUpload(ctx context.Context, key string) (objstore.UploadID, error) {
	return c.parts().StartUpload(ctx, key)
}

func (c *counting) PutPart(ctx context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	defer c.begin(objstore.SizeOf(req.Chunks))()
	return c.parts().PutPart(ctx, req)
}

func (c *counting) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	return c.parts().CompleteUpload(ctx, req)
}

func (c *counting) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	return c.parts().AbortUpload(ctx, key, id)
}

func TestStoreWithoutParts(t *testing.T) {
	mem := memstore.New(memstore.Config{})
	store := &counting{Store: mem, withoutParts: true}
	cfg := small()
	cfg.WholeBytesMax = 10 << 20
	u, err := NewUploader(cfg, store, testBucket, 1, 77)
	if err != nil {
		t.Fatal(err)
	}
	l := local{"a.sst": content(1, 9<<20), "OPTIONS": nil}
	r, err := u.Upload(t.Context(), l.write(t, t.TempDir()), 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := Restore(t.Context(), cfg, store, testBucket, r.Snapshot, dir); err != nil {
		t.Fatal(err)
	}
	l.equal(t, dir)
	_, err = u.Upload(t.Context(), local{"b.sst": content(2, 11<<20)}.write(t, t.TempDir()), 1, 1, nil)
	if !errors.Is(err, mink.ErrTooLarge) {
		t.Fatal(err)
	}
}

// Whatever an honest store does to the requests, the snapshot that comes out of it
// is whole. Late writes land behind everything.
func TestUploadThroughChaos(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Config{PageMax: 2})
			store := fault.New(mem, fault.Config{Seed: seed})
			store.Inject(fault.Chaos(0.06, 1e9)...)
			u := newUploader(t, store, 1)
			l := local{"big.sst": content(seed, ChunkBytes+7), "OPTIONS": []byte("o")}
			for _, n := range names(6) {
				l[n] = content(seed+uint64(len(l)), 3000)
			}
			dir := l.write(t, t.TempDir())
			var r Result
			var err error
			for range 20 { // as the loop would
				if r, err = u.Upload(t.Context(), dir, 1, 1, nil); err == nil {
					break
				}
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			to := filepath.Join(t.TempDir(), "restored")
			for range 20 {
				if _, err = Restore(t.Context(), small(), store, testBucket, r.Snapshot, to); err == nil {
					break
				}
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			l.equal(t, to)
			_ = store.Close()
		})
	}
}

func TestAmbiguousPuts(t *testing.T) {
	for name, rule := range map[string]fault.Rule{
		"lost request":            {Ops: fault.Put | fault.CompleteUpload, Times: 1, Do: fault.LoseRequest()},
		"lost answer":             {Ops: fault.Put | fault.CompleteUpload, Do: fault.LoseResponse()},
		"own conflict":            {Ops: fault.Put | fault.CompleteUpload, Do: fault.OwnConflict()},
		"lands late":              {Ops: fault.Put, Times: 2, Do: fault.LateAfter(1)},
		"short reads":             {Ops: fault.Get, Times: 3, Do: fault.ShortRead()},
		"a bit flips on its way":  {Ops: fault.Get, Times: 1, Do: fault.FlipBit()},
		"the store is throttling": {Times: 3, Do: fault.Throttle(0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New(memstore.Config{})
				store := fault.New(mem, fault.Config{})
				store.Inject(rule)
				r, err := newUploader(t, store, 1).Upload(t.Context(), files.write(t, t.TempDir()), 1, 1, nil)
				if err != nil {
					t.Fatal(err)
				}
				dir := filepath.Join(t.TempDir(), "restored")
				if _, err := Restore(t.Context(), small(), store, testBucket, r.Snapshot, dir); err != nil {
					t.Fatal(err)
				}
				files.equal(t, dir)
				if store.Stats().Faults == 0 {
					t.Error("nothing went wrong")
				}
				_ = store.Close()
			})
		})
	}
}

// The upload breaks off at every request once; the next one goes on with what is
// there, and what comes out is whole.
func TestUploadBreaksOffAnywhere(t *testing.T) {
	total := int64(0)
	for skip := 0; ; skip++ {
		store := newStore(t)
		in := store.Inject(fault.Rule{Ops: fault.Put | fault.StartUpload | fault.PutPart | fault.CompleteUpload, Skip: skip, Do: fault.FailBefore(objstore.ErrNoSpace)})
		u := newUploader(t, store, 1)
		dir := files.write(t, t.TempDir())
		_, err := u.Upload(t.Context(), dir, 1, 1, nil)
		if err == nil {
			if in.Fired() > 0 || skip < 8 {
				t.Fatalf("it succeeded after %d requests, %d failed", skip, in.Fired())
			}
			return
		}
		if !errors.Is(err, objstore.ErrNoSpace) {
			t.Fatal(err)
		}
		in.Remove()
		there := len(keys(t, store))
		r, err := u.Upload(t.Context(), dir, 1, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Uploaded+r.Reused != len(r.Snapshot.Files) || r.Reused != there {
			t.Fatalf("skip %d: %d files were there: %+v", skip, there, r)
		}
		for _, f := range r.Snapshot.Files {
			total += f.Size
			if err := CheckFile(t.Context(), small(), store, kvplan.BucketFile{Bucket: testBucket, File: f}, true); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Case 20 of real systems: the commit lands and its answer does not. Nothing is
// deleted, the next snapshot goes on, and every retained one can be restored.
func TestLostCommitAnswer(t *testing.T) {
	store, m := newStore(t), newMeta(t)
	m.append(t, 100)
	u := newUploader(t, store, 1)
	work := t.TempDir()
	l := local{"OPTIONS": nil}
	for i := range 12 {
		l = with(l, fmt.Sprintf("%06d.sst", i), content(uint64(i), 100+i))
		delete(l, fmt.Sprintf("%06d.sst", i-2))
		known := m.View().KVBucket(1)
		if i%5 == 4 { // the bucket was closed meanwhile, and its uploader forgotten
			u = newUploader(t, store, 1)
		}
		r, err := u.Upload(t.Context(), l.write(t, work), mink.Offset(i), 1, known)
		if err != nil {
			t.Fatal(err)
		}
		before := m.View()
		lost := errors.New("connection reset")
		switch i % 3 {
		case 1: // lands
			m.loseNext(lost)
			if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); !errors.Is(err, lost) {
				t.Fatal(err)
			}
			if i%2 == 1 { // asked again: the same verdict
				if id, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil || id != m.View().KVBucket(1).LastID {
					t.Fatal(id, err)
				}
			}
		case 2: // does not land
			m.loseNext(lost)
			if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); !errors.Is(err, lost) {
				t.Fatal(err)
			}
			m.mu.Lock()
			m.mu.state = before
			m.mu.Unlock()
		default:
			if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil {
				t.Fatal(err)
			}
		}
		sound(t, m, store)
	}
	if n := m.View().KVBucket(1).LastID; n != 8 {
		t.Fatalf("%d snapshots were committed", n)
	}
}

// A file that was uploaded for a snapshot which nobody committed may not be named once
// a later one is: it is uploaded anew.
func TestUploadsThatWereOvertaken(t *testing.T) {
	store, m := newStore(t), newMeta(t)
	m.append(t, 10)
	u := newUploader(t, store, 1)
	work := t.TempDir()
	for i, l := range []local{{"x.sst": content(1, 9), "OPTIONS": nil}, {"y.sst": content(2, 9), "OPTIONS": nil}, {"x.sst": content(1, 9), "y.sst": content(2, 9)}} {
		r, err := u.Upload(t.Context(), l.write(t, work), mink.Offset(i), 1, m.View().KVBucket(1))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			continue
		}
		if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil {
			t.Fatal(err)
		}
	}
	sound(t, m, store)
}

// The process ends between the checkpoint, the upload and the commit: whoever leads
// next knows of nothing, makes a snapshot of its own, and what is left over is the
// sweep's.
func TestDeathBetweenUploadAndCommit(t *testing.T) {
	store, m := newStore(t), newMeta(t)
	m.append(t, 10)
	l := local{"000001.sst": content(1, 100), "OPTIONS": nil}
	r, err := newUploader(t, store, 1).Upload(t.Context(), l.write(t, t.TempDir()), 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.failOver(t)
	if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); !errors.Is(err, mink.ErrFenced) {
		t.Fatalf("a former leader commits: %v", err)
	}
	u, err := NewUploader(small(), store, testBucket, 2, 78)
	if err != nil {
		t.Fatal(err)
	}
	r, err = u.Upload(t.Context(), l.write(t, t.TempDir()), 1, 1, m.View().KVBucket(1))
	if err != nil || r.Uploaded != 2 {
		t.Fatal(r, err)
	}
	if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil {
		t.Fatal(err)
	}
	orphans := 0
	for _, key := range keys(t, store) {
		f, _ := kvplan.ParseKey(key)
		if m.View().KVOrphan(f) {
			orphans++
			damage(t, store, f, true)
		}
	}
	if orphans != 2 {
		t.Fatalf("%d orphans", orphans)
	}
	sound(t, m, store)
}

// A snapshot waits for the log behind it to be uploaded, as long as its caller does.
func TestCommitWaitsForTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Config{})
		m := newMeta(t)
		r, err := newUploader(t, mem, 1).Upload(t.Context(), files.write(t, t.TempDir()), 7, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1e9)
		defer cancel()
		if _, err := Commit(ctx, m, 1, r.Snapshot, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := Commit(t.Context(), m, 1, r.Snapshot, 2)
			done <- err
		}()
		m.append(t, 6)
		synctest.Wait()
		if len(m.View().KVSnapshots(1)) != 0 {
			t.Fatal("committed ahead of the log")
		}
		m.append(t, 7)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestUploadRefuses(t *testing.T) {
	store := newStore(t)
	u := newUploader(t, store, 1)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Upload(t.Context(), dir, 1, 1, nil); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
	if _, err := u.Upload(t.Context(), dir+"-absent", 1, 1, nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	big := local{"MANIFEST": make([]byte, HeadBytesMax+1)}
	if _, err := u.Upload(t.Context(), big.write(t, t.TempDir()), 1, 1, nil); !errors.Is(err, mink.ErrTooLarge) {
		t.Error(err)
	}
	if n := len(keys(t, store)); n != 0 {
		t.Errorf("%d files of refused snapshots", n)
	}
	for name, change := range map[string]func(*Config){
		"requests": func(c *Config) { c.Requests = 0 }, "bytes": func(c *Config) { c.RequestBytes = ChunkBytes + 1 }, "tries": func(c *Config) { c.Tries = 0 },
	} {
		cfg := small()
		change(&cfg)
		if _, err := NewUploader(cfg, store, testBucket, 1, 1); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
