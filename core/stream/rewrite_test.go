package stream_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
)

// fill appends rounds of frames and uploads each.
func (w *world) fill(n *node, s *stream.Stream, rounds, each int) {
	w.t.Helper()
	for range rounds {
		for range each {
			w.put(s, 2, ckptFrame)
		}
		if err := n.UploadNow(context.Background()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestRewriteReplacesWhatIsUploaded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.fill(n, s, 5, 10)
		w.put(s, 2, ckptFrame) // not uploaded: stays
		limit, cleaned, err := s.CleanLimit()
		if err != nil || limit != 100 || cleaned != (plan.Cleaned{}) {
			t.Fatal(limit, cleaned, err)
		}
		left, err := s.Rewrite(t.Context(), joining(1, 60))
		if err != nil || left.End != 60 || left.DueMs != 7 || left.Bytes == 0 {
			t.Fatalf("%+v, %v", left, err)
		}
		w.valid()
		v := w.meta.State().Streams[1]
		if v.Cleaned != left || len(v.Ranges) != 3 || v.Ranges[0].End != 60 || v.Ranges[0].Object.Kind != plan.KindStream {
			t.Fatalf("stream %+v", v)
		}
		w.check(s)
		// Also where the log cache had the frames of before; what comes behind is from it.
		for _, c := range []struct{ from, start, next mink.Offset }{{0, 0, 2 * joinMax}, {60, 60, 62}} {
			if res, err := s.Read(t.Context(), stream.ReadRequest{From: c.from, MaxBytes: 1}); err != nil || res.Frames[0].Start != c.start || res.Next != c.next {
				t.Fatalf("read at %d: %+v, %v", c.from, res, err)
			}
		}
		s = n.reopen(s)
		w.check(s)
		w.checkCheckpoint(s)
		// A read within a joined frame goes on behind it.
		res, err := s.Read(t.Context(), stream.ReadRequest{From: 9, MaxBytes: 1})
		if err != nil || len(res.Frames) != 1 || res.Frames[0].Start != 0 || res.Next != 2*joinMax {
			t.Fatalf("%+v, %v", res, err)
		}
		// Again, over what was rewritten and more.
		if err := rewrite(s); err != nil {
			t.Fatal(err)
		}
		if v := w.meta.State().Streams[1]; len(v.Ranges) != 1 || v.Cleaned.End != v.End {
			t.Fatalf("stream %+v", v)
		}
		s = n.reopen(s)
		w.check(s)
		n.compactAll()
		w.check(n.reopen(s))
		time.Sleep(time.Hour)
		w.sameAsStore()
	})
}

// A trim of all that is rewritten, a merge elsewhere, a lost leadership meanwhile refuse
// a rewrite, and its objects go.
func TestRewriteIsRefusedWhenTheStreamChanged(t *testing.T) {
	for name, meanwhile := range map[string]func(*world, *node, *stream.Stream) error{
		"trim of all": func(_ *world, _ *node, s *stream.Stream) error { return s.Trim(context.Background(), 80) },
		"trim of all elsewhere": func(w *world, _ *node, _ *stream.Stream) error {
			return w.meta.TrimStreams(context.Background(), []plan.Trim{{Stream: 1, Start: 80}})
		},
		"merge": func(w *world, _ *node, _ *stream.Stream) error {
			w.meta.Change(func(p *plantest.State) { // another object with the same frames
				st := p.Streams[1]
				st.Ranges = append([]plan.Range{st.Ranges[0]}, st.Ranges...)
				st.Ranges[0].End, st.Ranges[1].Start = 10, 10
				p.Streams[1] = st
			})
			return nil
		},
		"leadership": func(w *world, n *node, _ *stream.Stream) error {
			w.meta.Lead(1, n.id)
			return nil
		},
		"close": func(_ *world, _ *node, s *stream.Stream) error { s.Close(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, n *node) {
				s := n.open(1)
				w.fill(n, s, 4, 10)
				r := joining(1, 80)
				r.Frames = func(old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] {
					return func(yield func(stream.Frame, error) bool) {
						for f, err := range join(1, old) {
							if f.Start > 40 && meanwhile != nil {
								if err := meanwhile(w, n, s); err != nil {
									t.Error(err)
								}
								meanwhile = nil
							}
							if !yield(f, err) {
								return
							}
						}
					}
				}
				if _, err := s.Rewrite(t.Context(), r); !errors.Is(err, mink.ErrConflict) && !errors.Is(err, mink.ErrClosed) {
					t.Fatalf("%v", err)
				}
				w.valid()
				if v := w.meta.State().Streams[1]; v.Cleaned != (plan.Cleaned{}) {
					t.Fatalf("stream %+v", v)
				}
				time.Sleep(3 * time.Hour) // leftovers go
				w.sameAsStore()
				w.check(n.reopen(s))
			})
		})
	}
}

// Retention goes on while a long rewrite is under way: what it took is passed over.
func TestRewriteBesideATrim(t *testing.T) {
	for name, to := range map[string]mink.Offset{"within a frame": 31, "of a whole object": 20, "up to the last frame": 79} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, n *node) {
				s := n.open(1)
				w.fill(n, s, 4, 10)
				r := joining(1, 80)
				r.Frames = func(old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] {
					return func(yield func(stream.Frame, error) bool) {
						for f, err := range join(1, old) {
							if f.Start > 40 && s.Start() < to {
								if err := s.Trim(context.Background(), to); err != nil {
									t.Error(err)
								}
							}
							if !yield(f, err) {
								return
							}
						}
					}
				}
				left, err := s.Rewrite(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				w.valid()
				if v := w.meta.State().Streams[1]; v.Cleaned != left || v.Start != to || v.Cleaned.End != 80 {
					t.Fatalf("stream %+v", v)
				}
				w.check(n.reopen(s))
				time.Sleep(3 * time.Hour)
				w.sameAsStore()
			})
		})
	}
}

// A rewrite of a large stream takes minutes. The node's other objects are merged meanwhile, and
// those that it reads are not: it would come to nothing.
func TestMergesGoOnBesideARewrite(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s, other := n.open(1), n.open(2)
		w.fill(n, s, 4, 10)
		sources := map[plan.ObjectID]bool{}
		for _, r := range w.meta.State().Streams[1].Ranges {
			sources[r.Object] = true
		}
		w.fill(n, other, 20, 10)
		before := n.Stats().Compactions
		r := joining(1, 80)
		r.Frames = func(old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] {
			return func(yield func(stream.Frame, error) bool) {
				first := true
				for f, err := range join(1, old) {
					if first {
						ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
						defer cancel()
						if err := n.CompactNow(ctx); err != nil {
							t.Errorf("merges beside a rewrite: %v", err)
						}
						first = false
						state := w.meta.State()
						for id := range sources {
							if _, named := state.Object(id); !named {
								t.Errorf("object %+v was merged", id)
							}
						}
					}
					if !yield(f, err) {
						return
					}
				}
			}
		}
		if _, err := s.Rewrite(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if n.Stats().Compactions == before {
			t.Error("nothing was merged")
		}
		w.valid()
		// Afterwards they are as others.
		before = n.Stats().Compactions
		w.fill(n, s, 20, 10)
		n.compactAll()
		if n.Stats().Compactions == before || len(w.meta.State().Streams[1].Ranges) > 12 {
			t.Errorf("the stream has %d ranges after merges", len(w.meta.State().Streams[1].Ranges))
		}
		w.check(n.reopen(s))
		w.check(n.reopen(other))
	})
}

// A node that has much to merge does not keep rewrites waiting for all of it.
func TestARewriteComesBetweenTwoMerges(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s, other := n.open(1), n.open(2)
		w.fill(n, s, 2, 10)
		w.fill(n, other, 100, 2)
		var mu sync.Mutex
		var ops []string // under mu: a rewrite and a merge may commit at once
		var rewriting sync.WaitGroup
		n.meta.inject(func(op string) (error, error) {
			if op != "replace" && op != "rewrite" {
				return nil, nil
			}
			mu.Lock()
			first := len(ops) == 0
			mu.Unlock()
			if op == "replace" && !first {
				synctest.Wait() // a rewrite that has its plan comes to its end
			}
			mu.Lock()
			ops = append(ops, op)
			mu.Unlock()
			if first { // the first merge is at its end
				rewriting.Go(func() {
					if err := rewrite(s); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			return nil, nil
		})
		if err := n.CompactNow(t.Context()); err != nil {
			t.Error(err)
		}
		rewriting.Wait()
		if len(ops) < 3 || ops[1] != "rewrite" {
			t.Errorf("the order was %v", ops)
		}
		w.check(n.reopen(s))
		w.check(n.reopen(other))
	})
}

// Frames that do not stand for those that were read never reach the metadata.
func TestRewriteRefusesFramesThatDoNotFit(t *testing.T) {
	change := func(f func(*stream.Frame)) func(iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] {
		return func(old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] {
			return func(yield func(stream.Frame, error) bool) {
				for x, err := range old {
					if f(&x); (err != nil || x.Span > 0) && !yield(x, err) {
						return
					}
				}
			}
		}
	}
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.fill(n, s, 2, 10)
		for name, r := range map[string]stream.Rewrite{
			"dropped":   {Upper: 40, Frames: change(func(f *stream.Frame) { f.Span *= uint64(min(f.Start%4, 1)) })},
			"last gone": {Upper: 40, Frames: change(func(f *stream.Frame) { f.Span *= uint64(min(38-f.Start, 1)) })},
			"longer":    {Upper: 40, Frames: change(func(f *stream.Frame) { f.Span++ })},
			"moved":     {Upper: 40, Frames: change(func(f *stream.Frame) { f.Start++ })},
			"too large": {Upper: 40, Frames: change(func(f *stream.Frame) { f.Bytes = make([]byte, w.cfg.RecordBytesMax+1) })},
			"cut frame": {Upper: 39, Frames: change(func(*stream.Frame) {})},
			"too far":   {Upper: 42, Frames: change(func(*stream.Frame) {})},
			"nothing":   {Upper: 0, Frames: change(func(*stream.Frame) {})},
		} {
			r.DueMs = func() int64 { return 0 }
			if _, err := s.Rewrite(t.Context(), r); !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrTooLarge) {
				t.Errorf("%s: %v", name, err)
			} else if n := w.meta.Proposals("rewrite"); n > 0 {
				t.Errorf("%s was proposed: %v", name, err)
			}
		}
		if got := w.meta.Proposals("rewrite"); got != 0 {
			t.Fatalf("%d commands were proposed", got)
		}
		time.Sleep(3 * time.Hour)
		w.sameAsStore()
	})
}

// A gap of accepted loss stays where it is; frames on its two sides are not joined.
func TestRewriteKeepsGaps(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.fill(n, s, 1, 10)
		s.Close()
		w.meta.Change(func(p *plantest.State) {
			st, err := p.Streams[1].AddGap(plan.Gap{Start: 20, End: 30})
			if err != nil {
				t.Error(err)
			}
			p.Streams[1] = st
		})
		w.cfg.WALUploadInterval = time.Hour
		s = n.open(1)
		w.put(s, 2, ckptFrame)
		w.meta.Change(func(p *plantest.State) { // its fold cannot go on over the gap: as if there were none
			st := p.Streams[1]
			st.Checkpoint, st.CheckEnd = plan.ObjectID{}, 0
			p.Streams[1] = st
		})
		time.Sleep(time.Minute)
		w.meta.Change(func(p *plantest.State) {
			st := p.Streams[1]
			st.Checkpoint, st.CheckEnd = st.Ranges[0].Object, st.End
			p.Streams[1] = st
		})
		if _, err := s.Rewrite(t.Context(), joining(1, 32)); err != nil {
			t.Fatal(err)
		}
		w.valid()
		if v := w.meta.State().Streams[1]; len(v.Ranges) != 2 || v.Ranges[0].End != 20 || v.Ranges[1].Start != 30 {
			t.Fatalf("stream %+v", v)
		}
	})
}

// Readers, appends, uploads, merges and trims beside rewrites: every reader sees every
// frame once and in order.
func TestRewritesBesideReadersAndMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.LogCacheBytes, w.cfg.RecordBytesMax, w.cfg.BlockCacheBytes = 2<<20, 64<<10, 64<<10 // most reads are cold
		w.cfg.Compaction.AgeMs = 1000
		n := w.start(1)
		s := n.open(1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		rewrites := 0
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := rewrite(s); err == nil {
					rewrites++
				} else if !errors.Is(err, mink.ErrConflict) {
					t.Error(err)
				}
				time.Sleep(700 * time.Millisecond)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := n.CompactNow(context.Background()); err != nil {
					t.Error(err)
				}
				time.Sleep(1100 * time.Millisecond)
			}
		})
		for range 2 {
			wg.Go(func() {
				for at := s.Start(); ctx.Err() == nil; {
					next, err := w.readOn(s, at)
					var gone *mink.OutOfRangeError
					if errors.As(err, &gone) {
						at = gone.Start
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if at = next; at == s.HighWatermark() {
						at = s.Start()
						time.Sleep(300 * time.Millisecond)
					}
				}
			})
		}
		for i := range 150 {
			w.put(s, 2, 20_000)
			if i%10 == 9 {
				if err := n.UploadNow(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if i%50 == 49 {
				if err := s.Trim(ctx, s.Start()+7); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		cancel()
		wg.Wait()
		if rewrites < 10 {
			t.Fatalf("%d rewrites", rewrites)
		}
		w.check(n.reopen(s))
		w.valid()
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// readOn reads once and checks what came: frames in order, without holes, with the
// right bytes.
func (w *world) readOn(s *stream.Stream, at mink.Offset) (mink.Offset, error) {
	res, err := s.Read(context.Background(), stream.ReadRequest{From: at, MaxBytes: 100_000})
	if err != nil {
		return at, err
	}
	for i, f := range unjoin(s.ID(), res.Frames) {
		if f.End() <= at && i == 0 || f.Start > at {
			if strings.HasPrefix(string(res.Frames[0].Bytes), joinMark) && f.End() <= at {
				continue // the head of a joined frame
			}
			return at, fmt.Errorf("frame [%d, %d) where %d was expected", f.Start, f.End(), at)
		}
		if f.End() <= at {
			continue
		}
		if string(f.Bytes) != string(payload(s.ID(), f.Start, len(f.Bytes))) {
			return at, fmt.Errorf("wrong bytes at %d", f.Start)
		}
		at = f.End()
	}
	if at != res.Next {
		return at, fmt.Errorf("frames end at %d, the read goes on at %d", at, res.Next)
	}
	return at, nil
}

// A rewrite whose fate nobody knows is carried out or not; either way its objects are
// named or go, and the next one finds its way.
func TestLostRewriteResponse(t *testing.T) {
	for _, landed := range []bool{true, false} {
		t.Run(fmt.Sprint(landed), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, n *node) {
				s := n.open(1)
				w.fill(n, s, 3, 10)
				n.meta.inject(func(op string) (error, error) {
					switch {
					case op != "rewrite":
						return nil, nil
					case landed:
						return nil, mink.ErrUnknownOutcome
					}
					return mink.ErrUnknownOutcome, nil
				})
				if err := rewrite(s); !errors.Is(err, mink.ErrUnknownOutcome) {
					t.Fatal(err)
				}
				n.meta.inject(nil)
				if v := w.meta.State().Streams[1]; (v.Cleaned.End == 60) != landed {
					t.Fatalf("stream %+v", v)
				}
				time.Sleep(3 * time.Hour)
				w.sameAsStore()
				if err := rewrite(s); err != nil {
					t.Fatal(err)
				}
				w.check(n.reopen(s))
			})
		})
	}
}

// A large rewrite is written in parts and cut into objects; what it makes of the whole
// stream is never in memory.
func TestRewriteWritesPartsAndCutsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.CompactPartBytes, w.cfg.Compaction.ObjectBytes = 64<<10, 2<<20
		n := w.start(1)
		s := n.open(1)
		for range 200 {
			w.put(s, 1, 50_000)
		}
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		parts := n.store.Stats().Parts
		same := func(old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] { return old }
		if _, err := s.Rewrite(t.Context(), stream.Rewrite{Upper: 200, Frames: same, DueMs: func() int64 { return 0 }}); err != nil {
			t.Fatal(err)
		}
		v := w.meta.State().Streams[1]
		if len(v.Ranges) < 5 || len(v.Ranges) > 8 {
			t.Errorf("10 MB are in %d objects of 2", len(v.Ranges))
		}
		if got := n.store.Stats().Parts - parts; got < 12 {
			t.Errorf("%d parts of a block were written", got)
		}
		w.valid()
		w.check(n.reopen(s))
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
}
