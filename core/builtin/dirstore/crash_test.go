package dirstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/sdk/objstore"
)

// absent is the outcome "there is no such object"; values are never empty.
const absent = ""

// world runs stores of two processes on one modelled disk and knows for each key
// what it may hold. An acknowledged or seen value is the only possible one; a
// write that was cut off adds one.
type world struct {
	ctx    context.Context
	rng    *rand.Rand
	disk   *fault.CrashFS
	omit   dirstore.Omission
	values int
	may    map[string]map[string]bool
	procs  [2]struct {
		files *fault.Process
		store *dirstore.Store
	}
	acked, losses, kills int
}

var crashKeys = []string{"a", "a/b", "a/b/c", "wal/1/7-ab/0", "wal/1/7-ab/1", "wal/1/8-cd/0", "A", "x.y/z", strings.Repeat("long", 30) + "/k"}

func newWorld(ctx context.Context, seed uint64, omit dirstore.Omission) *world {
	w := &world{
		ctx: ctx, rng: rand.New(rand.NewPCG(seed, 1)), disk: fault.NewCrashFS(seed), omit: omit,
		may: map[string]map[string]bool{},
	}
	for _, k := range crashKeys {
		w.may[k] = map[string]bool{absent: true}
	}
	return w
}

// open starts process i; it gets killed somewhere on its way.
func (w *world) open(i, killAfter int) error {
	p := &w.procs[i]
	p.files = w.disk.Process(killAfter)
	s, err := dirstore.OpenWithout(w.ctx, dirstore.Config{Dir: "/data/mink/objects", Files: p.files, ListPageMax: 2}, w.omit)
	if err != nil {
		return w.deadly(i, fmt.Errorf("open: %w", err))
	}
	p.store = s
	return nil
}

// deadly passes errors of a living process on.
func (w *world) deadly(i int, err error) error {
	if err == nil || !w.procs[i].files.Dead() {
		return err
	}
	w.procs[i].store = nil
	w.kills++
	return nil
}

func (w *world) powerLoss() {
	w.losses++
	luck := []fault.Survival{{}, {Names: 0.5, Sectors: 0.5}, {Names: 0.9, Sectors: 0.1}, {Names: 0.1, Sectors: 0.9}}
	w.disk.PowerLoss(luck[w.rng.IntN(len(luck))])
	for i := range w.procs {
		w.procs[i].store = nil
	}
}

// step does one random thing and checks what it can see of it.
func (w *world) step() error {
	i := w.rng.IntN(len(w.procs))
	if w.rng.IntN(40) == 0 {
		w.powerLoss()
	}
	s := w.procs[i].store
	if s == nil {
		return w.open(i, w.rng.IntN(70))
	}
	key := crashKeys[w.rng.IntN(len(crashKeys))]
	var err error
	switch w.rng.IntN(8) {
	case 0, 1, 2:
		err = w.put(s, key, true)
	case 3:
		err = w.put(s, key, false)
	case 4:
		err = w.delete(s, key)
	case 5, 6:
		err = w.get(s, key)
	case 7:
		err = w.list(s)
	}
	return w.deadly(i, err)
}

func (w *world) put(s *dirstore.Store, key string, createOnly bool) error {
	w.values++
	value := fmt.Sprintf("%d of %s %s", w.values, key, strings.Repeat("x", w.rng.IntN(2000)))
	_, err := s.Put(w.ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{[]byte(value[:5]), []byte(value[5:])}, CreateOnly: createOnly})
	switch {
	case err == nil && createOnly && !w.may[key][absent]:
		return fmt.Errorf("put %q created what was there", key)
	case err == nil:
		w.acked++
		w.may[key] = map[string]bool{value: true}
	case errors.Is(err, objstore.ErrAlreadyExists):
		return w.sawSome(key)
	default: // cut off
		w.may[key][value] = true
		return err
	}
	return nil
}

func (w *world) sawSome(key string) error {
	delete(w.may[key], absent)
	if len(w.may[key]) == 0 {
		return fmt.Errorf("%q is there but was deleted or never written", key)
	}
	return nil
}

func (w *world) delete(s *dirstore.Store, key string) error {
	resp, err := s.DeleteBatch(w.ctx, []string{key})
	if err == nil {
		err = resp.Errors[0]
	}
	if err != nil {
		w.may[key][absent] = true
		return err
	}
	w.may[key] = map[string]bool{absent: true}
	return nil
}

func (w *world) get(s *dirstore.Store, key string) error {
	got, err := s.GetRange(w.ctx, objstore.GetRangeRequest{Key: key, Length: -1})
	if errors.Is(err, objstore.ErrNotExist) {
		if !w.may[key][absent] {
			return fmt.Errorf("%q is lost; it was acknowledged or seen", key)
		}
		return nil // a delete that was cut off may yet be undone
	}
	if err != nil {
		return err
	}
	value := string(got.Data)
	if !w.may[key][value] || value == absent {
		return fmt.Errorf("%q holds %.30q (%d bytes), which it cannot", key, value, len(value))
	}
	w.may[key] = map[string]bool{value: true}
	return nil
}

func (w *world) list(s *dirstore.Store) error {
	seen := map[string]bool{}
	err := objstore.All(w.ctx, s, "", "", func(o objstore.ObjectInfo) bool {
		seen[o.Key] = true
		return true
	})
	if err != nil {
		return err
	}
	for _, key := range crashKeys {
		if seen[key] {
			err = w.sawSome(key)
		} else if !w.may[key][absent] {
			err = fmt.Errorf("%q is not listed; it was acknowledged or seen", key)
		}
		if err != nil {
			return err
		}
		delete(seen, key)
	}
	if len(seen) > 0 {
		return fmt.Errorf("listed but never written: %q", slices.Collect(maps.Keys(seen)))
	}
	return nil
}

// check opens an undisturbed store, after a power loss, and looks at everything.
func (w *world) check() error {
	w.powerLoss()
	if err := w.open(0, -1); err != nil {
		return err
	}
	s := w.procs[0].store
	if err := w.list(s); err != nil {
		return err
	}
	for _, key := range crashKeys {
		if err := w.get(s, key); err != nil {
			return err
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	names, err := w.procs[0].files.ReadDir("/data/mink/objects/%tmp")
	if err != nil || len(names) != 1 || names[0] != "open.lock" {
		return fmt.Errorf("left behind: %q, %w", names, err)
	}
	return nil
}

func crashRun(ctx context.Context, seed uint64, omit dirstore.Omission, steps int) (*world, error) {
	w := newWorld(ctx, seed, omit)
	for n := range steps {
		if err := w.step(); err != nil {
			return w, fmt.Errorf("seed %d, step %d: %w", seed, n, err)
		}
	}
	if err := w.check(); err != nil {
		return w, fmt.Errorf("seed %d, at the end: %w", seed, err)
	}
	return w, nil
}

func crashSeeds() uint64 {
	if testing.Short() {
		return 50
	}
	return 300
}

func TestCrashesLoseNothing(t *testing.T) {
	var acked, losses, kills int
	for seed := range crashSeeds() {
		w, err := crashRun(t.Context(), seed, 0, 150)
		if err != nil {
			t.Fatal(err)
		}
		acked, losses, kills = acked+w.acked, losses+w.losses, kills+w.kills
	}
	t.Logf("%d seeds: %d acknowledged puts, %d power losses, %d kills", crashSeeds(), acked, losses, kills)
	if n := int(crashSeeds()); acked < 10*n || losses < 2*n || kills < 2*n {
		t.Fatal("the runs are too tame to show anything")
	}
}

// TestCrashTestCatchesOmissions is the test of the test: a store that leaves out
// any one step must be found out.
func TestCrashTestCatchesOmissions(t *testing.T) {
	for name, omit := range dirstore.Omissions {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3000) {
				if _, err := crashRun(t.Context(), seed, omit, 150); err != nil {
					t.Logf("caught: %v", err)
					return
				}
			}
			t.Fatalf("a store without the %s passed every run", name)
		})
	}
}

// TestCrashAtEveryPoint runs one script, killed at its first change of the disk,
// at its second, and so on; with and without the power loss, with and without luck.
func TestCrashAtEveryPoint(t *testing.T) {
	script := func(w *world, s *dirstore.Store) error {
		for _, do := range []func() error{
			func() error { return w.put(s, "wal/1/7-ab/0", true) },
			func() error { return w.put(s, "wal/1/7-ab/1", true) },
			func() error { return w.put(s, "a", false) },
			func() error { return w.put(s, "a", false) },
			func() error { return w.put(s, "a/b", true) },
			func() error { return w.delete(s, "wal/1/7-ab/0") },
			func() error { return w.put(s, "wal/1/7-ab/0", true) },
			s.Close,
		} {
			if err := do(); err != nil {
				return err
			}
		}
		return nil
	}
	points := 0
	for seed := range uint64(8) {
		for ended := false; !ended; {
			w := newWorld(t.Context(), seed, 0)
			err := w.open(0, points)
			if s := w.procs[0].store; err == nil && s != nil {
				err = script(w, s)
				ended = err == nil
			}
			if err := w.deadly(0, err); err != nil {
				t.Fatalf("point %d: %v", points, err)
			}
			if seed%2 == 1 { // a process that starts after the kill sees it first
				if err := w.open(1, -1); err != nil {
					t.Fatalf("point %d: restart: %v", points, err)
				}
				for _, k := range crashKeys {
					if err := w.get(w.procs[1].store, k); err != nil {
						t.Fatalf("point %d: after the restart: %v", points, err)
					}
				}
			}
			if err := w.check(); err != nil {
				t.Fatalf("point %d, seed %d: %v", points, seed, err)
			}
			points++
		}
		if points < 40 {
			t.Fatalf("only %d points", points)
		}
		points = 0
	}
}

func TestConformanceOnTheModel(t *testing.T) {
	// The model must behave as a file system, or the crash tests mean nothing.
	runKit(t, func(t *testing.T) objstore.Store {
		s, err := dirstore.Open(t.Context(), dirstore.Config{Dir: "/d", Files: fault.NewCrashFS(1).Process(-1)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// TestConcurrentPutsSurviveACrash races for the same new directories: nobody may
// be told that a directory is durable before it is.
func TestConcurrentPutsSurviveACrash(t *testing.T) {
	const workers = 4
	for seed := range uint64(60) {
		disk := fault.NewCrashFS(seed)
		files := disk.Process(20 + int(seed)*2)
		s, err := dirstore.Open(t.Context(), dirstore.Config{Dir: "/d", Files: files})
		if err != nil {
			t.Fatal(err)
		}
		acked := make([][]string, workers)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for n := 0; ; n++ {
					key := fmt.Sprintf("new/%d/deeper/%d", n, w)
					if put(t.Context(), s, key, key) != nil {
						return // killed
					}
					acked[w] = append(acked[w], key)
				}
			})
		}
		wg.Wait()
		disk.PowerLoss(fault.Survival{})
		s, err = dirstore.Open(t.Context(), dirstore.Config{Dir: "/d", Files: disk.Process(-1)})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range slices.Concat(acked...) {
			got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Length: -1})
			if err != nil || string(got.Data) != key {
				t.Fatalf("seed %d: acknowledged %q: %q, %v", seed, key, got.Data, err)
			}
		}
	}
}
