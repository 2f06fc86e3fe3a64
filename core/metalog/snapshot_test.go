package metalog_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/faultlog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/sdk/mink"
)

func stateBytes(t *testing.T, s *cluster.State) []byte {
	t.Helper()
	var b bytes.Buffer
	check(t, s.EncodeSnapshot(func(rec []byte) error { b.Write(rec); b.WriteByte(0xff); return nil }))
	return b.Bytes()
}

// leaseHolder is a registered replica with the lease and some history.
func leaseHolder(t *testing.T, log metalog.Log) (running, metalog.Lease) {
	t.Helper()
	r := start(t, log)
	register(t, r, 1)
	lease, err := r.TakeLease(t.Context(), time.Hour)
	check(t, err)
	for range 5 {
		propose(t, r, allocate())
	}
	return r, lease
}

func TestSnapshotPlusTailIsFullReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		r, lease := leaseHolder(t, log)
		if through, err := r.TruncateNow(t.Context(), lease); err != nil || through != 0 {
			t.Fatalf("truncation without snapshots: %d, %v", through, err)
		}
		first, err := r.SnapshotNow(t.Context(), lease)
		check(t, err)
		again, err := r.SnapshotNow(t.Context(), lease) // nothing new: no error
		check(t, err)
		if first != again || first != r.Applied() {
			t.Fatalf("snapshots at %s and %s, applied %s", first, again, r.Applied())
		}
		propose(t, r, allocate())
		_, err = r.SnapshotNow(t.Context(), lease)
		check(t, err)
		propose(t, r, allocate())
		full := start(t, hideSnapshots{log})
		fast := start(t, log)
		if full.Applied() != fast.Applied() || !bytes.Equal(stateBytes(t, full.View()), stateBytes(t, fast.View())) {
			t.Fatal("snapshot + tail differs from the full replay")
		}
		through, err := r.TruncateNow(t.Context(), lease)
		check(t, err)
		if through != first.Index {
			t.Fatalf("truncated through %d, the older snapshot stands at %d", through, first.Index)
		}
		late := start(t, log)
		if !bytes.Equal(stateBytes(t, late.View()), stateBytes(t, r.View())) {
			t.Fatal("a start after the truncation gives another state")
		}
		_, err = metalog.Open(t.Context(), hideSnapshots{log}, metalog.Default(), quiet())
		wantErr(t, err, mink.ErrCorrupt) // truncated, and no snapshot
	})
}

type hideSnapshots struct{ metalog.Log }

func (hideSnapshots) Snapshots(context.Context) ([]metalog.SnapshotInfo, error) { return nil, nil }

// A node that fell behind the truncation goes on from the snapshot, and what it
// had proposed meanwhile is resolved from what the snapshot remembers.
func TestReloadBehindTruncation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		r, lease := leaseHolder(t, log)
		var cut atomic.Bool
		lagging := start(t, faultlog.New(log, faultlog.Config{Plan: func(op faultlog.Op) faultlog.Fault {
			switch {
			case cut.Load() && op == faultlog.Append:
				return faultlog.LostResponse
			case cut.Load():
				return faultlog.Refused
			}
			return faultlog.None
		}}))
		register(t, lagging, 2)
		check(t, r.WaitApplied(t.Context(), lagging.View().Index()))
		cut.Store(true)
		got := make(chan int64, 1)
		go func() {
			res, err := lagging.Propose(t.Context(), allocate())
			if err != nil {
				t.Error(err)
				got <- 0
				return
			}
			got <- res[0].Id
		}()
		synctest.Wait() // it is in the log, and the proposer does not know
		time.Sleep(5 * time.Second)
		var last int64
		for range 2 {
			for range 3 {
				last = propose(t, r, allocate())[0].Id
			}
			_, err := r.SnapshotNow(t.Context(), lease)
			check(t, err)
		}
		through, err := r.TruncateNow(t.Context(), lease)
		check(t, err)
		if through <= lagging.View().Index() {
			t.Fatalf("truncated through %d, the lagging node is at %d", through, lagging.View().Index())
		}
		cut.Store(false)
		id := <-got
		if id == 0 || id >= last {
			t.Fatalf("the lagging node's proposal was answered with id %d, later ones ended at %d", id, last)
		}
		check(t, lagging.WaitApplied(t.Context(), r.View().Index()))
		if next := propose(t, r, allocate())[0].Id; next != last+1 {
			t.Fatalf("the next id is %d, want %d: the proposal was applied twice", next, last+1)
		}
	})
}

// replacedSnapshots runs replace before the next snapshot is read, once.
type replacedSnapshots struct {
	metalog.Log
	replace *func()
}

func (l replacedSnapshots) ReadSnapshot(ctx context.Context, index uint64) iter.Seq2[[]byte, error] {
	if f := *l.replace; f != nil {
		*l.replace = nil
		f()
	}
	return l.Log.ReadSnapshot(ctx, index)
}

// Snapshots that are replaced by newer ones while they are read are no damage: a node
// that is behind, or starts, reads the newer ones.
func TestSnapshotsReplacedWhileTheyAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		r, lease := leaseHolder(t, log)
		write := func() {
			for range metalog.SnapshotsKept {
				propose(t, r, allocate())
				_, err := r.SnapshotNow(t.Context(), lease)
				check(t, err)
			}
			_, err := r.TruncateNow(t.Context(), lease)
			check(t, err)
		}
		var cut atomic.Bool
		var replace func()
		behind := replacedSnapshots{faultlog.New(log, faultlog.Config{Plan: func(faultlog.Op) faultlog.Fault {
			if cut.Load() {
				return faultlog.Refused
			}
			return faultlog.None
		}}), &replace}
		lagging := start(t, behind)
		cut.Store(true)
		time.Sleep(5 * time.Second)
		write()
		replace = write
		cut.Store(false)
		check(t, lagging.WaitApplied(t.Context(), r.View().Index()))
		if !bytes.Equal(stateBytes(t, lagging.View()), stateBytes(t, r.View())) {
			t.Error("the node that was behind has another state")
		}
		replace = write
		fresh, err := metalog.Open(t.Context(), behind, metalog.Default(), quiet())
		check(t, err)
		if !bytes.Equal(stateBytes(t, fresh.View()), stateBytes(t, r.View())) {
			t.Error("the node that started has another state")
		}
	})
}

// A proposal that was appended, but whose entry a snapshot skipped after the
// epoch was sealed, ends: nothing remembers its verdict.
func TestReloadAfterSeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		r, lease := leaseHolder(t, log)
		var cut atomic.Bool
		lagging := start(t, faultlog.New(log, faultlog.Config{Plan: func(op faultlog.Op) faultlog.Fault {
			if cut.Load() && op != faultlog.Append {
				return faultlog.Refused
			}
			return faultlog.None
		}}))
		epoch := register(t, lagging, 2)
		check(t, r.WaitApplied(t.Context(), lagging.View().Index()))
		cut.Store(true)
		got := make(chan error, 1)
		go func() {
			_, err := lagging.Propose(t.Context(), allocate())
			got <- err
		}()
		time.Sleep(time.Second)
		propose(t, r, seal(epoch, lease.Epoch))
		for range 2 {
			propose(t, r, allocate())
			_, err := r.SnapshotNow(t.Context(), lease)
			check(t, err)
		}
		_, err := r.TruncateNow(t.Context(), lease)
		check(t, err)
		cut.Store(false)
		err = <-got
		wantErr(t, err, mink.ErrFenced)
		wantErr(t, err, mink.ErrUnknownOutcome) // it was applied, and nobody can say so
	})
}

// Snapshots, truncation and reloads while every call of the database fails now
// and then: what is left gives the state of one who read every entry.
func TestSnapshotsUnderFaults(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			inner := memlog.New()
			witness := start(t, inner)
			var armed, cut atomic.Bool
			faulty := func(seed uint64, off *atomic.Bool) *faultlog.Log {
				random := faultlog.Random(seed, 0.3, faultlog.Refused, faultlog.LostResponse, faultlog.Disconnected, faultlog.Late, faultlog.Stalled)
				return faultlog.New(inner, faultlog.Config{LateBy: 200 * time.Millisecond, Plan: func(op faultlog.Op) faultlog.Fault {
					switch {
					case off != nil && off.Load():
						return faultlog.Refused
					case armed.Load():
						return random(op)
					}
					return faultlog.None
				}})
			}
			log, lagging := faulty(seed, nil), faulty(seed+1000, &cut)
			r, lease := leaseHolder(t, log)
			follower := start(t, lagging)
			armed.Store(true)
			try := func(what string, f func(context.Context) error) bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := f(ctx)
				if err != nil && !errors.Is(err, mink.ErrUnavailable) && !errors.Is(err, mink.ErrUnknownOutcome) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("seed %d: %s: %v", seed, what, err)
				}
				return err == nil
			}
			snapshots, truncations := 0, 0
			for i := range 40 {
				cut.Store(i%10 < 7)
				propose(t, r, allocate())
				if try("snapshot", func(ctx context.Context) error { _, err := r.SnapshotNow(ctx, lease); return err }) {
					snapshots++
				}
				if try("truncate", func(ctx context.Context) error { _, err := r.TruncateNow(ctx, lease); return err }) {
					truncations++
				}
				time.Sleep(3 * time.Second)
			}
			armed.Store(false)
			cut.Store(false)
			if snapshots < 5 || truncations < 5 {
				t.Errorf("seed %d: %d snapshots, %d truncations", seed, snapshots, truncations)
			}
			time.Sleep(time.Minute) // what is late lands
			fresh := start(t, inner)
			for name, other := range map[string]running{"a fresh one": fresh, "the lagging one": follower, "the proposer": r} {
				check(t, other.WaitApplied(t.Context(), witness.View().Index()))
				if !bytes.Equal(stateBytes(t, other.View()), stateBytes(t, witness.View())) {
					t.Errorf("seed %d: %s holds another state than one who read every entry", seed, name)
				}
			}
			check(t, r.stop())
			check(t, follower.stop())
			check(t, log.Close())
		})
	}
}

// damaged flips a bit in the newest snapshot as it is read.
type damaged struct {
	metalog.Log
	all bool
}

func (d damaged) ReadSnapshot(ctx context.Context, index uint64) iter.Seq2[[]byte, error] {
	infos, err := d.Snapshots(ctx)
	hit := err == nil && (d.all || infos[0].Index == index)
	return func(yield func([]byte, error) bool) {
		for p, err := range d.Log.ReadSnapshot(ctx, index) {
			if hit && err == nil {
				p[len(p)-1] ^= 4
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

func TestDamagedSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New()
		r, lease := leaseHolder(t, log)
		for range 2 {
			propose(t, r, allocate())
			_, err := r.SnapshotNow(t.Context(), lease)
			check(t, err)
		}
		_, err := r.TruncateNow(t.Context(), lease)
		check(t, err)
		// The older one and the log kept behind it hold everything.
		other := start(t, damaged{Log: log})
		if !bytes.Equal(stateBytes(t, other.View()), stateBytes(t, r.View())) {
			t.Fatal("the older snapshot + tail gives another state")
		}
		_, err = metalog.Open(t.Context(), damaged{Log: log, all: true}, metalog.Default(), quiet())
		wantErr(t, err, mink.ErrCorrupt)
		// Nothing is truncated on the word of a snapshot that cannot be read.
		propose(t, r, allocate())
		_, err = r.SnapshotNow(t.Context(), lease)
		check(t, err)
		before, err := log.Read(t.Context(), r.View().Index()-2, 10, 1000)
		check(t, err)
		careful := start(t, damaged{Log: log})
		_, err = careful.TruncateNow(t.Context(), lease)
		wantErr(t, err, mink.ErrCorrupt)
		after, err := log.Read(t.Context(), r.View().Index()-2, 10, 1000)
		check(t, err)
		if len(before) != len(after) {
			t.Fatal("it truncated")
		}
	})
}

func TestPoisonedLog(t *testing.T) {
	for _, c := range []struct {
		name    string
		payload string
		want    error
		text    string
	}{
		{"not a batch", "\xff\xff\xff", mink.ErrCorrupt, "metadata entry 2"},
		// Batch{feature_level 9, writer_version "v9", commands [unknown field 900]}
		{"unknown command", "\x18\x09\x22\x02v9\x2a\x04\xa2\x38\x01x", mink.ErrUnsupported, `"v9"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := memlog.New()
				r := start(t, log)
				register(t, r, 1)
				_, err := log.Append(t.Context(), metalog.Append{Payloads: [][]byte{[]byte(c.payload)}})
				check(t, err)
				synctest.Wait()
				err = r.stop()
				wantErr(t, err, c.want)
				if !bytes.Contains([]byte(err.Error()), []byte(c.text)) {
					t.Fatalf("error %q does not say %q", err, c.text)
				}
				_, err = metalog.Open(t.Context(), log, metalog.Default(), quiet())
				wantErr(t, err, c.want)
			})
		})
	}
}

func seq(parts [][]byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, p := range parts {
			if !yield(p, nil) {
				return
			}
		}
	}
}

func readRecords(parts [][]byte) (recs [][]byte, err error) {
	for rec, err := range metalog.Records(seq(parts)) {
		if err != nil {
			return nil, err
		}
		recs = append(recs, slices.Clone(rec))
	}
	return recs, nil
}

func TestPartsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(metalog.PartBytesMax-40, metalog.PartBytesMax+40)), 0, 3).Draw(t, "sizes")
		var recs [][]byte
		for i, n := range sizes {
			recs = append(recs, bytes.Repeat([]byte{byte(i + 1)}, n))
		}
		parts, err := metalog.NewPartBytes(recs)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			if err := metalog.CheckPart(p); err != nil {
				t.Fatal(err)
			}
		}
		got, err := readRecords(parts)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, recs, bytes.Equal) {
			t.Fatalf("%d records of sizes %v come back as %d", len(recs), sizes, len(got))
		}
		if len(parts) > 1 { // a part too few is seen
			if _, err := readRecords(parts[:len(parts)-1]); !errors.Is(err, mink.ErrCorrupt) {
				t.Fatalf("without its last part: %v", err)
			}
		}
	})
}

const goldenPart = "testdata/part-v1.bin"

func goldenRecords() [][]byte {
	return [][]byte{[]byte("first"), {}, bytes.Repeat([]byte("long "), 40)}
}

func TestPartGolden(t *testing.T) {
	parts, err := metalog.NewPartBytes(goldenRecords())
	check(t, err)
	want, err := os.ReadFile(goldenPart)
	if errors.Is(err, os.ErrNotExist) {
		check(t, os.MkdirAll(filepath.Dir(goldenPart), 0o755))
		check(t, os.WriteFile(goldenPart, parts[0], 0o644))
		t.Fatalf("%s was missing and is written: check and commit it", goldenPart)
	}
	check(t, err)
	if len(parts) != 1 || !bytes.Equal(parts[0], want) {
		t.Fatalf("the part format changed: %x, golden %x", parts, want)
	}
	got, err := readRecords([][]byte{want})
	check(t, err)
	if !slices.EqualFunc(got, goldenRecords(), bytes.Equal) {
		t.Fatalf("the golden part reads as %q", got)
	}
}

// Every single flipped bit of a part is seen.
func TestPartBitFlips(t *testing.T) {
	parts, err := metalog.NewPartBytes(goldenRecords())
	check(t, err)
	for bit := range len(parts[0]) * 8 {
		p := slices.Clone(parts[0])
		p[bit/8] ^= 1 << (bit % 8)
		if _, err := readRecords([][]byte{p}); err == nil {
			t.Fatalf("bit %d flipped: not seen", bit)
		}
	}
}

func FuzzParts(f *testing.F) {
	parts, err := metalog.NewPartBytes(goldenRecords())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(parts[0], []byte{})
	f.Add([]byte("MKSN\x01\x01\x00\x00"), parts[0])
	f.Add([]byte("\x03ab"), []byte("c\x00\x01d"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), []byte("\x80"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		// As they are: the frame's checks. Framed: the record stream's.
		for _, parts := range [][][]byte{{a, b}, metalog.SealParts(a, b)} {
			recs, err := readRecords(parts)
			if err != nil && !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnsupported) {
				t.Fatalf("unclassified error %v", err)
			}
			if n := len(slices.Concat(recs...)); n > len(a)+len(b) {
				t.Fatalf("%d bytes of records from %d bytes", n, len(a)+len(b))
			}
		}
	})
}

func TestConfigValidate(t *testing.T) {
	check(t, metalog.Default().Validate())
	for i, change := range []func(*metalog.Config){
		func(c *metalog.Config) { c.FeatureLevel = 0 },
		func(c *metalog.Config) { c.PollInterval = 0 },
		func(c *metalog.Config) { c.RetryBackoffMax = c.RetryBackoff - 1 },
		func(c *metalog.Config) { c.QueueMax = 0 },
		func(c *metalog.Config) { c.BatchBytesMax = metalog.PayloadBytesMax + 1 },
		func(c *metalog.Config) { c.ReadBytesMax = 0 },
	} {
		c := metalog.Default()
		change(&c)
		if err := c.Validate(); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("bad config %d: %v", i, err)
		}
	}
}
