package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

func objectChecks() []Check {
	return []Check{
		{"Capabilities", checkCapabilities},
		{"RoundTrip", checkRoundTrip},
		{"EmptyObject", checkEmptyObject},
		{"LargeObject", checkLargeObject},
		{"Ranges", checkRanges},
		{"ReadInto", checkReadInto},
		{"NotExist", checkNotExist},
		{"Alloc", checkAlloc},
		{"ContextOver", checkContextOver},
		{"Closed", checkClosed},
	}
}

// noise is n bytes that differ from one seed to the next.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = src.Read(b) // never fails
	return b
}

func checkCapabilities(t T, s objstore.Store) {
	c := s.Capabilities()
	if !c.CreateOnlyPut {
		t.Errorf("no create-only Put: Mink's log cannot be fenced on this store")
	}
	if c.ListPageMax < 1 || c.PutSizeMax < 1<<20 {
		t.Errorf("pages of %d keys, puts of %d bytes", c.ListPageMax, c.PutSizeMax)
	}
	_, multipart := objstore.Multipart(s)
	if (c.PartSizeMin > 0) != multipart || multipart && c.PartSizeMax < c.PartSizeMin {
		t.Errorf("parts of %d to %d bytes, multipart methods: %v", c.PartSizeMin, c.PartSizeMax, multipart)
	}
}

func checkRoundTrip(t T, s objstore.Store) {
	chunks := [][]byte{[]byte("head"), nil, {}, noise(1, 70_000), []byte("tail"), {}}
	whole := bytes.Join(chunks, nil)
	put := mustPut(t, s, "a/b/c.bin", chunks...)
	wantValue(t, s, "a/b/c.bin", whole)
	info, err := s.Head(t.Context(), "a/b/c.bin")
	if err != nil {
		t.Fatalf("head: %v", err)
	}
	if info.Key != "a/b/c.bin" || info.Size != int64(len(whole)) || info.Modified.IsZero() {
		t.Fatalf("head: %+v, the object has %d bytes", info, len(whole))
	}
	got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "a/b/c.bin", Length: -1})
	if err != nil || got.Version != put.Version || info.Version != put.Version {
		t.Fatalf("version by put %q, get %q, head %q; error %v", put.Version, got.Version, info.Version, err)
	}

	// The store must not have kept the chunks.
	for _, c := range chunks {
		clear(c)
	}
	wantValue(t, s, "a/b/c.bin", whole)
	clear(read(t, s, "a/b/c.bin"))
	wantValue(t, s, "a/b/c.bin", whole)
}

func checkEmptyObject(t T, s objstore.Store) {
	mustPut(t, s, "none")
	mustPut(t, s, "one", []byte{})
	for _, key := range []string{"none", "one"} {
		wantValue(t, s, key, nil)
		got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Offset: 0, Length: 0})
		if err != nil || len(got.Data) != 0 || got.Size != 0 {
			t.Fatalf("the empty range of an empty object: %+v, %v", got, err)
		}
		_, err = s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Offset: 0, Length: 1})
		wantIs(t, err, objstore.ErrInvalid, "one byte of an empty object")
		info, err := s.Head(t.Context(), key)
		if err != nil || info.Size != 0 {
			t.Fatalf("head: %+v, %v", info, err)
		}
	}
	wantKeys(t, s, "", "", 0, []string{"none", "one"})
}

func checkLargeObject(t T, s objstore.Store) {
	size := int(min(24<<20+3, s.Capabilities().PutSizeMax))
	whole := noise(2, size)
	var chunks [][]byte
	for rest, n := whole, 1; len(rest) > 0; n = n*3 + 1 { // from tiny to large ones
		n = min(n, len(rest))
		chunks = append(chunks, rest[:n])
		rest = rest[n:]
	}
	_, err := s.Put(t.Context(), objstore.PutRequest{
		Key: "large", Chunks: chunks, CreateOnly: true,
		CRC32C: objstore.Checksum(whole), HasCRC32C: true,
	})
	if err != nil {
		t.Fatalf("put %d bytes: %v", size, err)
	}
	got := read(t, s, "large")
	if !bytes.Equal(got, whole) {
		t.Fatalf("%d bytes came back changed (%d)", size, len(got))
	}
	into := make([]byte, min(size, 6<<20))
	ask := objstore.GetRangeRequest{Key: "large", Length: int64(len(into)), Into: into}
	ask.Filled = func(n int64) {
		if n < 0 || n > ask.Length || !bytes.Equal(into[:n], whole[:n]) {
			t.Errorf("told of %d bytes, which are not there", n)
		}
	}
	if resp, err := s.GetRange(t.Context(), ask); err != nil || !bytes.Equal(resp.Data, whole[:len(into)]) {
		t.Fatalf("a read that wants to be told of its progress: %d bytes, %v", len(resp.Data), err)
	}
	for _, r := range [][2]int64{{0, 1}, {4 << 20, 5 << 20}, {int64(size) - 1, 1}, {1, int64(size) - 1}} {
		got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "large", Offset: r[0], Length: r[1]})
		if err != nil || !bytes.Equal(got.Data, whole[r[0]:r[0]+r[1]]) || got.Size != int64(size) {
			t.Fatalf("range %v: %d bytes of %d, %v", r, len(got.Data), got.Size, err)
		}
	}
}

func checkRanges(t T, s objstore.Store) {
	whole := []byte("0123456789")
	mustPut(t, s, "ten", whole)
	for _, c := range []struct {
		offset, length int64
		want           string
		bad            bool
	}{
		{0, 10, "0123456789", false},
		{0, -1, "0123456789", false},
		{3, -1, "3456789", false},
		{10, -1, "", false},
		{10, 0, "", false},
		{0, 0, "", false},
		{5, 0, "", false},
		{2, 3, "234", false},
		{9, 1, "9", false},
		{0, 11, "", true},
		{9, 2, "", true},
		{10, 1, "", true},
		{11, 0, "", true},
		{11, -1, "", true},
		{-1, 1, "", true},
		{-1, -1, "", true},
		{0, -2, "", true},
		{0, math.MaxInt64, "", true},
		{1, math.MaxInt64, "", true},
		{math.MaxInt64, 1, "", true},
		{math.MaxInt64, -1, "", true},
		{math.MinInt64, -1, "", true},
		{0, math.MinInt64, "", true},
		{math.MaxInt64, math.MaxInt64, "", true},
	} {
		got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "ten", Offset: c.offset, Length: c.length})
		if c.bad {
			wantIs(t, err, objstore.ErrInvalid, "range %d +%d of 10 bytes", c.offset, c.length)
			continue
		}
		if err != nil || string(got.Data) != c.want || got.Size != 10 {
			t.Errorf("range %d +%d: %q of %d, %v; want %q of 10", c.offset, c.length, got.Data, got.Size, err, c.want)
		}
	}
}

func checkReadInto(t T, s objstore.Store) {
	mustPut(t, s, "k", []byte("0123456789"))
	into := make([]byte, 2, 16)
	got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Offset: 2, Length: 5, Into: into})
	if err != nil || string(got.Data) != "23456" {
		t.Fatalf("into enough memory: %q, %v", got.Data, err)
	}
	small := []byte("xy")
	got, err = s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Offset: 2, Length: 5, Into: small[:0:2]})
	if err != nil || string(got.Data) != "23456" {
		t.Fatalf("into too little memory: %q, %v", got.Data, err)
	}
	guarded := bytes.Repeat([]byte{'g'}, 16)
	got, err = s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Offset: 0, Length: 4, Into: guarded[4:4:8]})
	if err != nil || string(got.Data) != "0123" || string(guarded[:4])+string(guarded[8:]) != "gggggggggggg" {
		t.Fatalf("into the middle of a buffer: %q, buffer %q, %v", got.Data, guarded, err)
	}
}

func checkNotExist(t T, s objstore.Store) {
	wantAbsent(t, s, "absent")
	mustPut(t, s, "dir/below", []byte("x"))
	wantAbsent(t, s, "dir")
	wantAbsent(t, s, "dir/below/deeper")
	wantAbsent(t, s, "dir/belo")
}

func checkAlloc(t T, s objstore.Store) {
	for _, n := range []int{0, 1, 4096, 1 << 20} {
		b := s.Alloc(n)
		if len(b.Bytes()) != n {
			t.Fatalf("alloc %d gave %d bytes", n, len(b.Bytes()))
		}
		want := noise(uint64(n), n)
		copy(b.Bytes(), want)
		key := fmt.Sprint("alloc", n)
		mustPut(t, s, key, []byte("on the heap "), b.Bytes())
		b.Release()
		b.Release()
		wantValue(t, s, key, append([]byte("on the heap "), want...))
	}
}

func checkContextOver(t T, s objstore.Store) {
	mustPut(t, s, "kept", []byte("x"))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancelLate()
	for _, c := range []struct {
		ctx  context.Context
		want error
	}{{cancelled, context.Canceled}, {late, context.DeadlineExceeded}} {
		_, err := s.Put(c.ctx, objstore.PutRequest{Key: "new", Chunks: [][]byte{[]byte("x")}})
		wantIs(t, err, c.want, "put")
		_, err = s.GetRange(c.ctx, objstore.GetRangeRequest{Key: "kept", Length: -1})
		wantIs(t, err, c.want, "get")
		_, err = s.Head(c.ctx, "kept")
		wantIs(t, err, c.want, "head")
		_, err = s.List(c.ctx, objstore.ListRequest{})
		wantIs(t, err, c.want, "list")
		_, err = s.DeleteBatch(c.ctx, []string{"kept"})
		wantIs(t, err, c.want, "delete")
	}
	wantKeys(t, s, "", "", 0, []string{"kept"})
}

func checkClosed(t T, s objstore.Store) {
	mustPut(t, s, "k", []byte("x"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	ctx := t.Context()
	_, put := s.Put(ctx, objstore.PutRequest{Key: "k2"})
	_, get := s.GetRange(ctx, objstore.GetRangeRequest{Key: "k", Length: -1})
	_, head := s.Head(ctx, "k")
	_, list := s.List(ctx, objstore.ListRequest{})
	_, del := s.DeleteBatch(ctx, []string{"k"})
	for op, err := range map[string]error{"put": put, "get": get, "head": head, "list": list, "delete": del} {
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%s on a closed store: %v, want %v", op, err, objstore.ErrUnavailable)
		}
	}
}
