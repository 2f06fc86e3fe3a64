package objstoretest

import (
	"bytes"
	"errors"
	"sync"

	"github.com/mink-project/mink/sdk/objstore"
)

func partChecks() []Check {
	return []Check{
		{"Multipart", withParts(checkMultipart)},
		{"MultipartCreateOnly", withParts(checkMultipartCreateOnly)},
		{"MultipartErrors", withParts(checkMultipartErrors)},
		{"MultipartAbort", withParts(checkMultipartAbort)},
	}
}

// withParts passes stores without multipart uploads: checkCapabilities has seen
// that they say so.
func withParts(check func(T, objstore.Store, objstore.Multiparter)) func(T, objstore.Store) {
	return func(t T, s objstore.Store) {
		if m, ok := objstore.Multipart(s); ok {
			check(t, s, m)
		}
	}
}

func start(t T, m objstore.Multiparter, key string) objstore.UploadID {
	t.Helper()
	id, err := m.StartUpload(t.Context(), key)
	if err != nil || id == "" {
		t.Fatalf("start upload of %q: id %q, %v", key, id, err)
	}
	return id
}

func putPart(t T, m objstore.Multiparter, key string, id objstore.UploadID, n int, data []byte) objstore.Part {
	t.Helper()
	p, err := m.PutPart(t.Context(), objstore.PutPartRequest{
		Key: key, Upload: id, Number: n, Chunks: [][]byte{data[:len(data)/2], data[len(data)/2:]},
		CRC32C: objstore.Checksum(data), HasCRC32C: true,
	})
	if err != nil || p.Number != n || p.Size != int64(len(data)) {
		t.Fatalf("part %d of %q: %+v, %v", n, key, p, err)
	}
	return p
}

func checkMultipart(t T, s objstore.Store, m objstore.Multiparter) {
	least := int(s.Capabilities().PartSizeMin)
	const key = "up/large"
	id := start(t, m, key)
	if again := start(t, m, key); again == id {
		t.Fatalf("two uploads of one key have the id %q", id)
	}
	// Out of order, at once, with holes in the numbers, one written twice.
	numbers := []int{9, 1, 4, 10000}
	datas, parts := make([][]byte, len(numbers)), make([]objstore.Part, len(numbers))
	putPart(t, m, key, id, 4, noise(77, least+1))
	var wg sync.WaitGroup
	errs := make([]error, len(numbers))
	for i, n := range numbers {
		datas[i] = noise(uint64(n), least+i*10)
		wg.Go(func() {
			parts[i], errs[i] = m.PutPart(t.Context(), objstore.PutPartRequest{Key: key, Upload: id, Number: n, Chunks: [][]byte{datas[i]}})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("parts: %v", err)
	}
	wantAbsent(t, s, key)
	wantKeys(t, s, "", "", 0, []string{})
	_, err := m.CompleteUpload(t.Context(), objstore.CompleteUploadRequest{
		Key: key, Upload: id, Parts: []objstore.Part{parts[1], parts[2], parts[0], parts[3]},
	})
	if err != nil {
		t.Fatalf("complete: %v", err)
	}
	wantValue(t, s, key, bytes.Join([][]byte{datas[1], datas[2], datas[0], datas[3]}, nil))
	wantKeys(t, s, "", "", 0, []string{key})
}

func checkMultipartCreateOnly(t T, s objstore.Store, m objstore.Multiparter) {
	complete := func(value []byte, createOnly bool) error {
		id := start(t, m, "k")
		p := putPart(t, m, "k", id, 1, value)
		_, err := m.CompleteUpload(t.Context(), objstore.CompleteUploadRequest{Key: "k", Upload: id, Parts: []objstore.Part{p}, CreateOnly: createOnly})
		return err
	}
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		id := start(t, m, "k")
		p := putPart(t, m, "k", id, 1, []byte{byte(i)})
		wg.Go(func() {
			_, errs[i] = m.CompleteUpload(t.Context(), objstore.CompleteUploadRequest{Key: "k", Upload: id, Parts: []objstore.Part{p}, CreateOnly: true})
		})
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		if err == nil && winner >= 0 {
			t.Fatalf("uploads %d and %d both created the key", winner, i)
		} else if err == nil {
			winner = i
		} else {
			wantIs(t, err, objstore.ErrAlreadyExists, "a lost create-only completion")
		}
	}
	if winner < 0 {
		t.Fatalf("nobody created the key")
	}
	wantValue(t, s, "k", []byte{byte(winner)})
	wantIs(t, create(t.Context(), s, "k", nil), objstore.ErrAlreadyExists, "create what an upload wrote")
	if err := complete([]byte("replaced"), false); err != nil {
		t.Fatalf("complete over an object: %v", err)
	}
	wantValue(t, s, "k", []byte("replaced"))
}

func checkMultipartErrors(t T, s objstore.Store, m objstore.Multiparter) {
	ctx := t.Context()
	_, err := m.StartUpload(ctx, "not//valid")
	wantIs(t, err, objstore.ErrInvalid, "start with a bad key")
	id := start(t, m, "k")
	for _, n := range []int{0, -1, objstore.PartNumberMax + 1} {
		_, err := m.PutPart(ctx, objstore.PutPartRequest{Key: "k", Upload: id, Number: n})
		wantIs(t, err, objstore.ErrInvalid, "part number %d", n)
	}
	_, err = m.PutPart(ctx, objstore.PutPartRequest{Key: "k", Upload: id, Number: 1, Chunks: [][]byte{[]byte("x")}, HasCRC32C: true})
	wantIs(t, err, objstore.ErrCorrupt, "part with a wrong checksum")
	_, err = m.PutPart(ctx, objstore.PutPartRequest{Key: "other", Upload: id, Number: 1})
	wantIs(t, err, objstore.ErrNotExist, "part of another key's upload")
	one := putPart(t, m, "k", id, 1, noise(1, int(s.Capabilities().PartSizeMin)))
	two := putPart(t, m, "k", id, 2, []byte("2"))
	complete := func(key string, id objstore.UploadID, parts ...objstore.Part) error {
		_, err := m.CompleteUpload(ctx, objstore.CompleteUploadRequest{Key: key, Upload: id, Parts: parts})
		return err
	}
	wantIs(t, complete("k", id), objstore.ErrInvalid, "no parts")
	wantIs(t, complete("k", id, two, one), objstore.ErrInvalid, "parts out of order")
	wantIs(t, complete("k", id, one, one), objstore.ErrInvalid, "a part twice")
	wantIs(t, complete("k", "no such upload", one), objstore.ErrNotExist, "an unknown upload")
	forged := one
	forged.Tag += "x"
	wantIs(t, complete("k", id, forged), objstore.ErrInvalid, "a part that was never written")
	wantAbsent(t, s, "k")
	if err := complete("k", id, one, two); err != nil {
		t.Fatalf("complete after refused attempts: %v", err)
	}
}

func checkMultipartAbort(t T, s objstore.Store, m objstore.Multiparter) {
	id := start(t, m, "k")
	p := putPart(t, m, "k", id, 1, []byte("x"))
	for i := range 2 {
		if err := m.AbortUpload(t.Context(), "k", id); err != nil {
			t.Fatalf("abort, time %d: %v", i+1, err)
		}
	}
	_, err := m.CompleteUpload(t.Context(), objstore.CompleteUploadRequest{Key: "k", Upload: id, Parts: []objstore.Part{p}})
	wantIs(t, err, objstore.ErrNotExist, "complete after an abort")
	if err := m.AbortUpload(t.Context(), "k", "never was"); err != nil {
		t.Fatalf("abort of an absent upload: %v", err)
	}
	wantKeys(t, s, "", "", 0, []string{})
	mustPut(t, s, "after", []byte("x"))
}
