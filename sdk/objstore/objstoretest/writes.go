package objstoretest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/mink-project/mink/sdk/objstore"
)

func writeChecks() []Check {
	return []Check{
		{"CreateOnly", checkCreateOnly},
		{"CreateOnlyRace", checkCreateOnlyRace},
		{"Overwrite", checkOverwrite},
		{"OverwriteIsAtomic", checkOverwriteIsAtomic},
		{"CompareAndSwap", checkCompareAndSwap},
		{"ChecksumMismatch", checkChecksumMismatch},
		{"Delete", checkDelete},
		{"DeletePerKey", checkDeletePerKey},
		{"Concurrent", checkConcurrent},
	}
}

func checkCreateOnly(t T, s objstore.Store) {
	if err := create(t.Context(), s, "w/0", []byte("first")); err != nil {
		t.Fatalf("create: %v", err)
	}
	wantIs(t, create(t.Context(), s, "w/0", []byte("second")), objstore.ErrAlreadyExists, "create a taken key")
	wantIs(t, create(t.Context(), s, "w/0", []byte("first")), objstore.ErrAlreadyExists, "create it with the same bytes")
	wantValue(t, s, "w/0", []byte("first"))
	deleteOne(t, s, "w/0")
	if err := create(t.Context(), s, "w/0", []byte("third")); err != nil {
		t.Fatalf("create after a delete: %v", err)
	}
	wantValue(t, s, "w/0", []byte("third"))
	mustPut(t, s, "w/1", []byte("plain"))
	wantIs(t, create(t.Context(), s, "w/1", nil), objstore.ErrAlreadyExists, "create what a plain put wrote")
}

func checkCreateOnlyRace(t T, s objstore.Store) {
	const writers, rounds = 8, 12
	for round := range rounds {
		key := fmt.Sprintf("race/%d/slot", round) // the directory is raced for as well
		errs := make([]error, writers)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				<-start
				errs[w] = create(t.Context(), s, key, noise(uint64(w), 3000))
			})
		}
		close(start)
		wg.Wait()
		winner := -1
		for w, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("%s: writers %d and %d were both told that they created it", key, winner, w)
			case err == nil:
				winner = w
			case !errors.Is(err, objstore.ErrAlreadyExists):
				t.Fatalf("%s: writer %d: %v, want %v", key, w, err, objstore.ErrAlreadyExists)
			}
		}
		if winner < 0 {
			t.Fatalf("%s: nobody created it", key)
		}
		wantValue(t, s, key, noise(uint64(winner), 3000))
	}
}

func checkOverwrite(t T, s objstore.Store) {
	for _, v := range [][]byte{noise(1, 5000), []byte("short"), {}, noise(2, 9000)} {
		mustPut(t, s, "k", v)
		wantValue(t, s, "k", v)
	}
	wantKeys(t, s, "", "", 0, []string{"k"})
}

// checkOverwriteIsAtomic overwrites until enough reads have ended beside it: on a
// busy machine a fixed number of puts can be over before the first read begins.
func checkOverwriteIsAtomic(t T, s objstore.Store) {
	const size, rounds = 40_000, 30
	value := func(b byte) []byte { return bytes.Repeat([]byte{b}, size+int(b)) }
	mustPut(t, s, "k", value(0))
	var enough atomic.Bool
	var puts atomic.Int64
	var werr error
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		for i := 0; werr == nil && !enough.Load(); i++ {
			_, werr = s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{value(byte(i % rounds))}})
			puts.Add(1)
		}
	}()
	defer func() { enough.Store(true); <-writer }() // also when a read fails the check
	for reads := int64(0); min(reads, puts.Load()) < rounds; reads++ {
		got := read(t, s, "k")
		if len(got) == 0 || !bytes.Equal(got, value(got[0])) {
			t.Fatalf("a reader saw %d bytes that nobody wrote", len(got))
		}
		select {
		case <-writer:
			t.Fatalf("put: %v", werr)
		default:
		}
	}
}

func checkCompareAndSwap(t T, s objstore.Store) {
	swap := func(version string, value []byte) (objstore.PutResponse, error) {
		return s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{value}, IfMatch: version})
	}
	_, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", CreateOnly: true, IfMatch: "v"})
	wantIs(t, err, objstore.ErrInvalid, "create-only and a version")
	if !s.Capabilities().CompareAndSwap {
		_, err := swap("v", nil)
		wantIs(t, err, objstore.ErrUnimplemented, "a version where the capability is missing")
		return
	}
	_, err = swap("v", nil)
	wantIs(t, err, objstore.ErrConflict, "swap of an absent key")
	v1 := mustPut(t, s, "k", []byte("one"))
	v2, err := swap(v1.Version, []byte("two"))
	if err != nil || v2.Version == v1.Version || v1.Version == "" {
		t.Fatalf("swap: versions %q, %q, %v", v1.Version, v2.Version, err)
	}
	_, err = swap(v1.Version, []byte("three"))
	wantIs(t, err, objstore.ErrConflict, "swap of a stale version")
	wantValue(t, s, "k", []byte("two"))

	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = swap(v2.Version, []byte{byte(i)}) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			wantIs(t, err, objstore.ErrConflict, "a lost swap")
		}
	}
	if won != 1 {
		t.Fatalf("%d of %d swaps of one version succeeded", won, len(errs))
	}
}

func checkChecksumMismatch(t T, s objstore.Store) {
	value := []byte("value")
	bad := objstore.PutRequest{Key: "k", Chunks: [][]byte{value}, CRC32C: objstore.Checksum(value) ^ 1, HasCRC32C: true}
	for _, createOnly := range []bool{false, true} {
		bad.CreateOnly = createOnly
		_, err := s.Put(t.Context(), bad)
		wantIs(t, err, objstore.ErrCorrupt, "put with a wrong checksum")
	}
	wantAbsent(t, s, "k")
	wantKeys(t, s, "", "", 0, []string{})
	split := [][]byte{value[:2], nil, value[2:]}
	_, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: split, CRC32C: objstore.Checksum(value), HasCRC32C: true})
	if err != nil {
		t.Fatalf("put with the right checksum in chunks: %v", err)
	}
	_, err = s.Put(t.Context(), objstore.PutRequest{Key: "zero", Chunks: split, HasCRC32C: true})
	wantIs(t, err, objstore.ErrCorrupt, "checksum 0 is a checksum")
	wantValue(t, s, "k", value)
}

func checkDelete(t T, s objstore.Store) {
	resp, err := s.DeleteBatch(t.Context(), nil)
	if err != nil || len(resp.Errors) != 0 {
		t.Fatalf("an empty batch: %v, %v", resp, err)
	}
	deleteOne(t, s, "never/was")
	mustPut(t, s, "d/a", []byte("a"))
	mustPut(t, s, "d/b", []byte("b"))
	deleteOne(t, s, "d")
	wantValue(t, s, "d/a", []byte("a"))
	deleteOne(t, s, "d/a")
	deleteOne(t, s, "d/a")
	wantAbsent(t, s, "d/a")
	wantValue(t, s, "d/b", []byte("b"))
	deleteOne(t, s, "d/b")
	wantKeys(t, s, "", "", 0, []string{})
	mustPut(t, s, "d", []byte("now an object"))
	wantValue(t, s, "d", []byte("now an object"))
}

func checkDeletePerKey(t T, s objstore.Store) {
	mustPut(t, s, "x/1", []byte("1"))
	mustPut(t, s, "x/2", []byte("2"))
	mustPut(t, s, "y", []byte("y"))
	resp, err := s.DeleteBatch(t.Context(), []string{"x/1", "not//valid", "absent", "x/2", "x/1"})
	if err != nil || len(resp.Errors) != 5 {
		t.Fatalf("batch: %v, %v", resp.Errors, err)
	}
	for i, err := range resp.Errors {
		if i == 1 {
			wantIs(t, err, objstore.ErrInvalid, "the slot of the invalid key")
		} else if err != nil {
			t.Errorf("slot %d: %v", i, err)
		}
	}
	wantKeys(t, s, "", "", 0, []string{"y"})
	_, err = s.DeleteBatch(t.Context(), make([]string, objstore.DeleteMax+1))
	wantIs(t, err, objstore.ErrInvalid, "a batch over the limit")
	many := make([]string, objstore.DeleteMax)
	for i := range many {
		many[i] = fmt.Sprintf("m/%d", i)
	}
	mustPut(t, s, many[7], nil)
	mustPut(t, s, many[len(many)-1], nil)
	resp, err = s.DeleteBatch(t.Context(), many)
	if err != nil || errors.Join(resp.Errors...) != nil {
		t.Fatalf("a full batch: %v, %v", errors.Join(resp.Errors...), err)
	}
	wantKeys(t, s, "", "", 0, []string{"y"})
}

// checkConcurrent gives every worker its own keys in shared directories; each must
// see exactly its own history.
func checkConcurrent(t T, s objstore.Store) {
	const workers, steps = 8, 25
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { errs[w] = work(t, s, w, steps) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v", err)
	}
}

func work(t T, s objstore.Store, w, steps int) error {
	ctx, rng := t.Context(), rand.New(rand.NewPCG(9, uint64(w)))
	have := map[string][]byte{}
	for i := range steps {
		key := fmt.Sprintf("shared/%d/w%d", rng.IntN(3), w)
		switch rng.IntN(4) {
		case 0:
			if resp, err := s.DeleteBatch(ctx, []string{key}); err != nil || resp.Errors[0] != nil {
				return fmt.Errorf("delete %q: %v, %w", key, resp.Errors, err)
			}
			delete(have, key)
		default:
			v := noise(uint64(w*1000+i), rng.IntN(5000))
			if _, err := s.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{v}}); err != nil {
				return err
			}
			have[key] = v
		}
		for d := range 3 {
			key := fmt.Sprintf("shared/%d/w%d", d, w)
			got, err := s.GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
			want, ok := have[key]
			if ok != (err == nil) || !bytes.Equal(got.Data, want) {
				return fmt.Errorf("get %q: %d bytes, %w; want %d bytes, present %v", key, len(got.Data), err, len(want), ok)
			}
			found := false
			err = objstore.All(ctx, s, key, "", func(o objstore.ObjectInfo) bool { found = found || o.Key == key; return true })
			if err != nil || found != ok {
				return fmt.Errorf("list %q: found %v, want %v, %w", key, found, ok, err)
			}
		}
	}
	return nil
}
