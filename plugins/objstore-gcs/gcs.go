// Command mink-plugin-objstore-gcs keeps Mink's objects in Google Cloud Storage.
package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iterator"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// open makes a store of a bucket and asks for one key.
func open(ctx context.Context, uri string, options map[string]string) (objstore.Store, error) {
	cfg, err := readConfig(uri, options)
	if err != nil {
		return nil, err
	}
	client, web, err := cfg.client(context.WithoutCancel(ctx)) // the store outlives the call
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	bucket := client.Bucket(cfg.bucket)
	if cfg.quotaProject != "" {
		bucket = bucket.UserProject(cfg.quotaProject)
	}
	return cloudstore.Open(ctx, uri, &service{cfg: cfg, client: client, bucket: bucket, web: web}, cfg.prefix, cfg.limits)
}

// service is one bucket; see cloudstore.Service for the methods. An object's
// version is its generation.
type service struct {
	cfg    config
	client *storage.Client
	bucket *storage.BucketHandle
	web    *cloudstore.Client
}

var (
	_ cloudstore.Service = (*service)(nil)
	_ cloudstore.Parts   = (*service)(nil)
)

// objectMax is the largest object, of one put or composed.
const objectMax = 5 << 40

// Capabilities has Google's documented limits. The latency is that of a put of
// some KiB from the bucket's own region.
func (s *service) Capabilities() objstore.Capabilities {
	return objstore.Capabilities{
		CreateOnlyPut: true, CompareAndSwap: true, ListPageMax: 1000,
		PutSizeMax: objectMax, PartSizeMin: 1, PartSizeMax: objectMax,
		PutLatency: 50 * time.Millisecond, Local: cloudstore.Loopback(s.cfg.endpoint),
	}
}

// Put is one request with the bytes in it, not a resumable upload, which is three.
func (s *service) Put(ctx context.Context, w cloudstore.Write) (string, error) {
	object := s.bucket.Object(w.Name)
	switch {
	case w.CreateOnly:
		object = object.If(storage.Conditions{DoesNotExist: true})
	case w.IfMatch != "":
		generation, err := strconv.ParseInt(w.IfMatch, 10, 64)
		if err != nil || generation <= 0 {
			return "", &condition{error: fmt.Errorf("%q is no version of an object", w.IfMatch), lost: true}
		}
		object = object.If(storage.Conditions{GenerationMatch: generation})
	}
	generation, err := s.write(ctx, object, w)
	if err != nil {
		return "", &condition{error: err, createOnly: w.CreateOnly, ifMatch: w.IfMatch != ""}
	}
	return version(generation), nil
}

func (s *service) write(ctx context.Context, object *storage.ObjectHandle, w cloudstore.Write) (generation int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := object.NewWriter(ctx)
	out.ChunkSize = 0
	out.CRC32C, out.SendCRC32C = w.CRC32C, true
	out.ContentType = "application/octet-stream"
	out.KMSKeyName, out.StorageClass = s.cfg.kmsKey, s.cfg.storageClass
	if _, err := w.Body().WriteTo(out); err != nil {
		cancel()
		return 0, errors.Join(err, out.Close())
	}
	if err := out.Close(); err != nil {
		return 0, err
	}
	return out.Attrs().Generation, nil
}

func (s *service) Get(ctx context.Context, name string, offset, n int64) (cloudstore.Object, error) {
	in, err := s.bucket.Object(name).NewRangeReader(ctx, offset, n)
	if err != nil {
		return cloudstore.Object{}, err
	}
	o := cloudstore.Object{Body: in, Size: in.Attrs.Size, Version: version(in.Attrs.Generation)}
	if sum := in.Attrs.CRC32C; offset == 0 && n < 0 && sum != 0 { // 0: not said, or that of one object in 4 billion
		o.CRC32C = &sum
	}
	return o, nil
}

func (s *service) Head(ctx context.Context, name string) (objstore.ObjectInfo, error) {
	attrs, err := s.bucket.Object(name).Attrs(ctx)
	if err != nil {
		return objstore.ObjectInfo{}, err
	}
	return info(attrs), nil
}

func info(a *storage.ObjectAttrs) objstore.ObjectInfo {
	return objstore.ObjectInfo{Key: a.Name, Size: a.Size, Modified: a.Updated, Version: version(a.Generation)}
}

func version(generation int64) string { return strconv.FormatInt(generation, 10) }

// List asks for one more than wanted: the service's start is inclusive.
func (s *service) List(ctx context.Context, p cloudstore.Page) ([]objstore.ObjectInfo, string, error) {
	query := &storage.Query{Prefix: p.Prefix, StartOffset: p.After, Projection: storage.ProjectionNoACL}
	if err := query.SetAttrSelection([]string{"Name", "Size", "Updated", "Generation"}); err != nil {
		return nil, "", err
	}
	var page []*storage.ObjectAttrs
	next, err := iterator.NewPager(s.bucket.Objects(ctx, query), min(p.Limit+1, 1000), p.Next).NextPage(&page)
	if err != nil {
		return nil, "", err
	}
	objects := make([]objstore.ObjectInfo, len(page))
	for i, a := range page {
		objects[i] = info(a)
	}
	return objects, next, nil
}

// Delete is a request a name: the service's batches are requests in one envelope.
func (s *service) Delete(ctx context.Context, names []string) ([]error, error) {
	return cloudstore.Each(ctx, names, func(ctx context.Context, name string) error {
		err := s.bucket.Object(name).Delete(ctx)
		if errors.Is(err, storage.ErrObjectNotExist) && !noBucket(err) {
			return nil
		}
		return err
	}), nil
}

// Close drops the connections.
func (s *service) Close() error {
	s.web.Close()
	return s.client.Close()
}
