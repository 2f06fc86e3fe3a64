package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// Parts are blocks that were not committed. The service keeps them by blob, not by
// upload, for a week, and drops all of a blob's when a list is committed or a blob
// is put: of two uploads of one key at once, one completes, and the other one is
// refused as if it was never begun. A block's id, which is the part's tag:
//
//	bytes 0-7   of the upload
//	      8-9   part number
//	     10-15  random: a part that is written again is another block
//
// An upload that was aborted is remembered in memory only: its blocks cannot be
// dropped, but nobody else knows its id.
const blockIDBytes = 16

var (
	errNoUpload = errors.New("no such upload of this key")
	errBadPart  = errors.New("no such part")
)

// uploads remembers the latest aborted ones.
type uploads struct {
	mu struct {
		sync.Mutex
		aborted map[objstore.UploadID]bool
		order   []objstore.UploadID
	}
}

const abortedMax = 10_000

func newUploads() *uploads {
	u := &uploads{}
	u.mu.aborted = map[objstore.UploadID]bool{}
	return u
}

func (u *uploads) abort(id objstore.UploadID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.aborted[id] {
		return
	}
	u.mu.aborted[id] = true
	if u.mu.order = append(u.mu.order, id); len(u.mu.order) > abortedMax {
		delete(u.mu.aborted, u.mu.order[0])
		u.mu.order = u.mu.order[1:]
	}
}

func (u *uploads) isAborted(id objstore.UploadID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.aborted[id]
}

func keyMark(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:6])
}

// upload is the part of an id that goes into the blocks' ids.
func (s *service) upload(name string, id objstore.UploadID) ([]byte, error) {
	random, mark, _ := strings.Cut(string(id), "-")
	raw, err := hex.DecodeString(random)
	if err != nil || len(raw) != 8 || mark != keyMark(name) || s.uploads.isAborted(id) {
		return nil, errNoUpload
	}
	return raw, nil
}

func (s *service) Start(_ context.Context, name string) (objstore.UploadID, error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return objstore.UploadID(hex.EncodeToString(random[:]) + "-" + keyMark(name)), nil
}

func (s *service) PutPart(ctx context.Context, id objstore.UploadID, number int, w cloudstore.Write) (string, error) {
	upload, err := s.upload(w.Name, id)
	if err != nil {
		return "", err
	}
	block := binary.BigEndian.AppendUint16(append(make([]byte, 0, blockIDBytes), upload...), uint16(number))
	block = block[:blockIDBytes]
	_, _ = rand.Read(block[10:]) // never fails
	tag := base64.StdEncoding.EncodeToString(block)
	_, err = s.container.NewBlockBlobClient(w.Name).StageBlock(ctx, tag, w.Body(), &blockblob.StageBlockOptions{
		TransactionalValidation: checksum(w.Chunks),
	})
	return tag, brief(err)
}

func (s *service) Complete(ctx context.Context, name string, id objstore.UploadID, parts []objstore.Part, createOnly bool) (string, error) {
	upload, err := s.upload(name, id)
	if err != nil {
		return "", err
	}
	tags := make([]string, len(parts))
	for i, p := range parts {
		block, err := base64.StdEncoding.DecodeString(p.Tag)
		if err != nil || len(block) != blockIDBytes || string(block[:8]) != string(upload) || int(binary.BigEndian.Uint16(block[8:])) != p.Number {
			return "", fmt.Errorf("%w: part %d has the tag %q", errBadPart, p.Number, p.Tag)
		}
		tags[i] = p.Tag
	}
	out, err := s.container.NewBlockBlobClient(name).CommitBlockList(ctx, tags, &blockblob.CommitBlockListOptions{
		AccessConditions: conditions(createOnly, ""), Tier: s.tier(),
	})
	if err != nil {
		return "", conditional(err, createOnly, false)
	}
	return version(out.ETag), nil
}

func (s *service) Abort(_ context.Context, _ string, id objstore.UploadID) error {
	s.uploads.abort(id)
	return nil
}
