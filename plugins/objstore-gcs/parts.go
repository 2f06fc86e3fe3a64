package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iterator"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// An upload is a folder of objects that are composed into one. The service has
// multipart uploads too, but without conditions on their completion.
//
//	PREFIX//mink-uploads/ID/00001    a part
//	PREFIX//mink-uploads/ID/c1-0     32 parts composed, where there are more than 32
//
// No key can have such a name, for keys have no empty segments, so that List does
// not show them. A part's tag is its generation. Nothing is kept of an upload
// but its parts: an upload without any is one that was aborted.

// composeMax is the most objects that one request composes.
const composeMax = 32

// errNoUpload is the error for an id that is not one of the key.
var errNoUpload = errors.New("no such upload of this key")

func keyMark(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:6])
}

// folder is where the parts of an upload are.
func (s *service) folder(name string, id objstore.UploadID) (string, error) {
	random, mark, ok := strings.Cut(string(id), "-")
	if _, err := hex.DecodeString(random); err != nil || !ok || len(random) != 24 || mark != keyMark(name) {
		return "", errNoUpload
	}
	return s.cfg.prefix + "//mink-uploads/" + string(id) + "/", nil
}

func (s *service) Start(_ context.Context, name string) (objstore.UploadID, error) {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	return objstore.UploadID(hex.EncodeToString(random[:]) + "-" + keyMark(name)), nil
}

func (s *service) PutPart(ctx context.Context, id objstore.UploadID, number int, w cloudstore.Write) (string, error) {
	folder, err := s.folder(w.Name, id)
	if err != nil {
		return "", err
	}
	generation, err := s.write(ctx, s.bucket.Object(fmt.Sprintf("%s%05d", folder, number)), w)
	return version(generation), err
}

func (s *service) Complete(ctx context.Context, name string, id objstore.UploadID, parts []objstore.Part, createOnly bool) (string, error) {
	folder, err := s.folder(name, id)
	if err != nil {
		return "", err
	}
	sources := make([]*storage.ObjectHandle, len(parts))
	for i, p := range parts {
		generation, err := strconv.ParseInt(p.Tag, 10, 64)
		if err != nil {
			return "", fmt.Errorf("%w: part %d has the tag %q", errBadPart, p.Number, p.Tag)
		}
		sources[i] = s.bucket.Object(fmt.Sprintf("%s%05d", folder, p.Number)).Generation(generation)
	}
	for level := 1; len(sources) > composeMax; level++ {
		var composed []*storage.ObjectHandle
		for at := 0; at < len(sources); at += composeMax {
			group := s.bucket.Object(fmt.Sprintf("%sc%d-%d", folder, level, at/composeMax))
			attrs, err := s.compose(ctx, group, sources[at:min(at+composeMax, len(sources))])
			if err != nil {
				return "", err
			}
			composed = append(composed, group.Generation(attrs.Generation))
		}
		sources = composed
	}
	object := s.bucket.Object(name)
	if createOnly {
		object = object.If(storage.Conditions{DoesNotExist: true})
	}
	attrs, err := s.compose(ctx, object, sources)
	if err != nil {
		return "", &condition{error: err, createOnly: createOnly}
	}
	// What is left of the parts costs money and harms nothing: see docs/plugins.md
	// for the rule that removes them.
	_ = s.Abort(ctx, name, id)
	return version(attrs.Generation), nil
}

func (s *service) compose(ctx context.Context, object *storage.ObjectHandle, sources []*storage.ObjectHandle) (*storage.ObjectAttrs, error) {
	c := object.ComposerFrom(sources...)
	c.ContentType = "application/octet-stream"
	c.KMSKeyName, c.StorageClass = s.cfg.kmsKey, s.cfg.storageClass
	return c.Run(ctx)
}

func (s *service) Abort(ctx context.Context, name string, id objstore.UploadID) error {
	folder, err := s.folder(name, id)
	if err != nil {
		return nil //nolint:nilerr // it is not there
	}
	query := &storage.Query{Prefix: folder, Projection: storage.ProjectionNoACL}
	if err := query.SetAttrSelection([]string{"Name"}); err != nil {
		return err
	}
	var names []string
	for it := s.bucket.Objects(ctx, query); ; {
		attrs, err := it.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return err
		}
		names = append(names, attrs.Name)
	}
	errs, err := s.Delete(ctx, names)
	for _, e := range errs {
		if e != nil {
			return e // one says it: the caller wants the class
		}
	}
	return err
}
