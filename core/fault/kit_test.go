package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

// The conformance kit's own test: stores that are wrong in one way each.

type (
	putReq  = objstore.PutRequest
	putResp = objstore.PutResponse
	getReq  = objstore.GetRangeRequest
	getResp = objstore.GetRangeResponse
	lsReq   = objstore.ListRequest
	lsResp  = objstore.ListResponse
	delResp = objstore.DeleteResponse
)

// broken is a memory store with some methods replaced.
type broken struct {
	*memstore.Store
	caps     func(objstore.Capabilities) objstore.Capabilities
	alloc    func(int) objstore.Buffer
	put      func(context.Context, putReq) (putResp, error)
	get      func(context.Context, getReq) (getResp, error)
	head     func(context.Context, string) (objstore.ObjectInfo, error)
	list     func(context.Context, lsReq) (lsResp, error)
	del      func(context.Context, []string) (delResp, error)
	closed   func() error
	complete func(context.Context, objstore.CompleteUploadRequest) (putResp, error)
	abort    func(context.Context, string, objstore.UploadID) error
	part     func(context.Context, objstore.PutPartRequest) (objstore.Part, error)
}

func (b *broken) Capabilities() objstore.Capabilities {
	if c := b.Store.Capabilities(); b.caps != nil {
		return b.caps(c)
	}
	return b.Store.Capabilities()
}

func (b *broken) Alloc(n int) objstore.Buffer {
	if b.alloc != nil {
		return b.alloc(n)
	}
	return b.Store.Alloc(n)
}

func (b *broken) Put(ctx context.Context, r putReq) (putResp, error) {
	if b.put != nil {
		return b.put(ctx, r)
	}
	return b.Store.Put(ctx, r)
}

func (b *broken) GetRange(ctx context.Context, r getReq) (getResp, error) {
	if b.get != nil {
		return b.get(ctx, r)
	}
	return b.Store.GetRange(ctx, r)
}

func (b *broken) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	if b.head != nil {
		return b.head(ctx, key)
	}
	return b.Store.Head(ctx, key)
}

func (b *broken) List(ctx context.Context, r lsReq) (lsResp, error) {
	if b.list != nil {
		return b.list(ctx, r)
	}
	return b.Store.List(ctx, r)
}

func (b *broken) DeleteBatch(ctx context.Context, keys []string) (delResp, error) {
	if b.del != nil {
		return b.del(ctx, keys)
	}
	return b.Store.DeleteBatch(ctx, keys)
}

func (b *broken) Close() error {
	if b.closed != nil {
		return b.closed()
	}
	return b.Store.Close()
}

func (b *broken) CompleteUpload(ctx context.Context, r objstore.CompleteUploadRequest) (putResp, error) {
	if b.complete != nil {
		return b.complete(ctx, r)
	}
	return b.Store.CompleteUpload(ctx, r)
}

func (b *broken) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	if b.abort != nil {
		return b.abort(ctx, key, id)
	}
	return b.Store.AbortUpload(ctx, key, id)
}

func (b *broken) PutPart(ctx context.Context, r objstore.PutPartRequest) (objstore.Part, error) {
	if b.part != nil {
		return b.part(ctx, r)
	}
	return b.Store.PutPart(ctx, r)
}

// letOthersRun gives a racing goroutine its chance: a sleep leaves the processor
// on a loaded machine too, where yielding often does not.
func letOthersRun() { time.Sleep(time.Millisecond) }

// mistake breaks a store; the named check must notice.
type mistake struct {
	name  string
	check string
	plant func(b *broken)
}

func mistakes() []mistake {
	return slices.Concat(writeMistakes(), readMistakes(), listMistakes(), partMistakes())
}

func writeMistakes() []mistake {
	return []mistake{
		{"create-only is ignored", "CreateOnly", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				r.CreateOnly = false
				return b.Store.Put(ctx, r)
			}
		}},
		{"create-only looks first, then writes", "CreateOnlyRace", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				if r.CreateOnly {
					if _, err := b.Store.Head(ctx, r.Key); err == nil {
						return putResp{}, objstore.ErrAlreadyExists
					}
					letOthersRun()
					r.CreateOnly = false
				}
				return b.Store.Put(ctx, r)
			}
		}},
		{"overwrites in two steps", "OverwriteIsAtomic", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				all := slices.Concat(r.Chunks...)
				half := r
				half.Chunks, half.HasCRC32C = [][]byte{all[:len(all)/2]}, false
				if !r.CreateOnly && r.IfMatch == "" {
					_, _ = b.Store.Put(ctx, half)
					letOthersRun()
				}
				return b.Store.Put(ctx, r)
			}
		}},
		{"an overwrite keeps the old tail", "Overwrite", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				n := objstore.SizeOf(r.Chunks)
				old, err := b.Store.GetRange(ctx, getReq{Key: r.Key, Length: -1})
				if err == nil && !r.CreateOnly && int64(len(old.Data)) > n {
					r.Chunks, r.HasCRC32C = append(slices.Clone(r.Chunks), old.Data[n:]), false
				}
				return b.Store.Put(ctx, r)
			}
		}},
		{"the checksum is ignored", "ChecksumMismatch", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				r.HasCRC32C = false
				return b.Store.Put(ctx, r)
			}
		}},
		{"the version is ignored", "CompareAndSwap", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				r.IfMatch = ""
				return b.Store.Put(ctx, r)
			}
		}},
		{"keys are not checked", "InvalidKeys", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				if objstore.ValidateKey(r.Key) != nil {
					return putResp{}, nil
				}
				return b.Store.Put(ctx, r)
			}
		}},
		{"every 20th put is lost", "Concurrent", func(b *broken) {
			var n atomic.Int64
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				if n.Add(1)%20 == 0 {
					return putResp{}, nil
				}
				return b.Store.Put(ctx, r)
			}
		}},
		{"a directory cannot be where an object is", "KeyPrefixOfKey", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				for i := range len(r.Key) {
					if _, err := b.Store.Head(ctx, r.Key[:i]); r.Key[i] == '/' && err == nil {
						return putResp{}, objstore.ErrInvalid
					}
				}
				return b.Store.Put(ctx, r)
			}
		}},
		{"deleting an absent key fails", "Delete", func(b *broken) {
			b.del = func(ctx context.Context, keys []string) (delResp, error) {
				var missing []error
				for _, k := range keys {
					_, err := b.Store.Head(ctx, k)
					missing = append(missing, err)
				}
				_, err := b.Store.DeleteBatch(ctx, keys)
				return delResp{Errors: missing}, err
			}
		}},
		{"one bad key fails the batch", "DeletePerKey", func(b *broken) {
			b.del = func(ctx context.Context, keys []string) (delResp, error) {
				r, err := b.Store.DeleteBatch(ctx, keys)
				return r, errors.Join(append(r.Errors, err)...)
			}
		}},
		{"close does nothing", "Closed", func(b *broken) { b.closed = func() error { return nil } }},
		{"no create-only", "Capabilities", func(b *broken) {
			b.caps = func(c objstore.Capabilities) objstore.Capabilities { c.CreateOnlyPut = false; return c }
		}},
		{"buffers are too long", "Alloc", func(b *broken) {
			b.alloc = func(n int) objstore.Buffer { return objstore.HeapAlloc(n + 1) }
		}},
		{"contexts are ignored", "ContextOver", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				return b.Store.Put(context.WithoutCancel(ctx), r)
			}
		}},
	}
}

func readMistakes() []mistake {
	return []mistake{
		{"a range is cut to the object", "Ranges", func(b *broken) {
			b.get = func(ctx context.Context, r getReq) (getResp, error) {
				if info, err := b.Store.Head(ctx, r.Key); err == nil && r.Offset >= 0 && r.Offset < info.Size && r.Length > info.Size-r.Offset {
					r.Length = -1
				}
				return b.Store.GetRange(ctx, r)
			}
		}},
		{"the chunks are kept", "RoundTrip", func(b *broken) {
			var kept sync.Map
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				kept.Store(r.Key, r.Chunks)
				return b.Store.Put(ctx, r)
			}
			b.get = func(ctx context.Context, r getReq) (getResp, error) {
				got, err := b.Store.GetRange(ctx, r)
				if c, ok := kept.Load(r.Key); ok && r.Length == -1 && r.Offset == 0 {
					got.Data = slices.Concat(c.([][]byte)...)
				}
				return got, err
			}
		}},
		{"empty means absent", "EmptyObject", func(b *broken) {
			b.get = func(ctx context.Context, r getReq) (getResp, error) {
				got, err := b.Store.GetRange(ctx, r)
				if err == nil && got.Size == 0 {
					return getResp{}, objstore.ErrNotExist
				}
				return got, err
			}
		}},
		{"only the first 16 MiB are stored", "LargeObject", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				if all := slices.Concat(r.Chunks...); len(all) > 16<<20 {
					r.Chunks, r.HasCRC32C = [][]byte{all[:16<<20]}, false
				}
				return b.Store.Put(ctx, r)
			}
		}},
		{"reads append to the memory given", "ReadInto", func(b *broken) {
			b.get = func(ctx context.Context, r getReq) (getResp, error) {
				into := r.Into
				r.Into = nil
				got, err := b.Store.GetRange(ctx, r)
				got.Data = append(into, got.Data...)
				return got, err
			}
		}},
		{"absent is unavailable", "NotExist", func(b *broken) {
			b.get = func(ctx context.Context, r getReq) (getResp, error) {
				got, err := b.Store.GetRange(ctx, r)
				if errors.Is(err, objstore.ErrNotExist) {
					err = objstore.ErrUnavailable
				}
				return got, err
			}
		}},
		{"case is folded", "CaseSensitive", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				r.Key = strings.ToLower(r.Key)
				return b.Store.Put(ctx, r)
			}
		}},
		{"escapes in keys are undone", "HostileKeys", func(b *broken) {
			b.put = func(ctx context.Context, r putReq) (putResp, error) {
				if k, err := url.PathUnescape(r.Key); err == nil && objstore.ValidateKey(k) == nil {
					r.Key = k
				}
				return b.Store.Put(ctx, r)
			}
		}},
	}
}

func listMistakes() []mistake {
	change := func(how func(lsReq, *lsResp)) func(*broken) {
		return func(b *broken) {
			b.list = func(ctx context.Context, r lsReq) (lsResp, error) {
				page, err := b.Store.List(ctx, r)
				how(r, &page)
				return page, err
			}
		}
	}
	return []mistake{
		{"there is never more", "ListRequests", change(func(_ lsReq, p *lsResp) { p.More = false })},
		{"the order is reversed", "ListAgainstModel", change(func(_ lsReq, p *lsResp) { slices.Reverse(p.Objects) })},
		{"sizes are missing", "ListInfo", change(func(_ lsReq, p *lsResp) {
			for i := range p.Objects {
				p.Objects[i].Size = 0
			}
		})},
		{"directories are listed", "ListEmpty", change(func(_ lsReq, p *lsResp) {
			p.Objects = append([]objstore.ObjectInfo{{Key: "/"}}, p.Objects...)
		})},
		{"start-after is inclusive", "ListAgainstModel", func(b *broken) {
			b.list = func(ctx context.Context, r lsReq) (lsResp, error) {
				if _, err := b.Store.Head(ctx, r.StartAfter); err == nil {
					r.StartAfter = r.StartAfter[:len(r.StartAfter)-1]
				}
				return b.Store.List(ctx, r)
			}
		}},
		{"a prefix is a directory", "ListAgainstModel", func(b *broken) {
			b.list = func(ctx context.Context, r lsReq) (lsResp, error) {
				if r.Prefix != "" && !strings.HasSuffix(r.Prefix, "/") {
					r.Prefix += "/"
				}
				return b.Store.List(ctx, r)
			}
		}},
	}
}

func partMistakes() []mistake {
	return []mistake{
		{"parts come in the order of arrival", "Multipart", func(b *broken) {
			b.complete = func(ctx context.Context, r objstore.CompleteUploadRequest) (putResp, error) {
				slices.Reverse(r.Parts)
				for i := range r.Parts {
					r.Parts[i].Number = i + 1
				}
				return b.Store.CompleteUpload(ctx, r)
			}
		}},
		{"completions replace", "MultipartCreateOnly", func(b *broken) {
			b.complete = func(ctx context.Context, r objstore.CompleteUploadRequest) (putResp, error) {
				r.CreateOnly = false
				return b.Store.CompleteUpload(ctx, r)
			}
		}},
		{"part checksums are ignored", "MultipartErrors", func(b *broken) {
			b.part = func(ctx context.Context, r objstore.PutPartRequest) (objstore.Part, error) {
				r.HasCRC32C = false
				return b.Store.PutPart(ctx, r)
			}
		}},
		{"abort does nothing", "MultipartAbort", func(b *broken) {
			b.abort = func(context.Context, string, objstore.UploadID) error { return nil }
		}},
	}
}

// verdict is a T that remembers the first failure.
type verdict struct {
	ctx context.Context
	mu  sync.Mutex
	why string
}

func (v *verdict) Helper()                  {}
func (v *verdict) Context() context.Context { return v.ctx }

func (v *verdict) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.why == "" {
		v.why = fmt.Sprintf(format, args...)
	}
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

// failure runs one check and answers why it failed, "" if it did not.
func failure(ctx context.Context, c objstoretest.Check, s objstore.Store) string {
	v := &verdict{ctx: ctx}
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(v, s) })
	wg.Wait()
	return v.why
}

func TestKitCatchesBrokenStores(t *testing.T) {
	checks := map[string]objstoretest.Check{}
	blind := map[string]bool{} // checks that have caught nothing yet
	for _, c := range objstoretest.Checks() {
		checks[c.Name], blind[c.Name] = c, true
	}
	for _, m := range mistakes() {
		t.Run(m.name, func(t *testing.T) {
			b := &broken{Store: memstore.New(memstore.Default())}
			m.plant(b)
			why := failure(t.Context(), checks[m.check], b)
			if why == "" {
				t.Fatalf("%s did not notice", m.check)
			}
			delete(blind, m.check)
			t.Logf("%s: %.150s", m.check, why)
		})
	}
	if len(blind) > 0 {
		t.Fatalf("no planted mistake is caught by %v", blind)
	}
}
