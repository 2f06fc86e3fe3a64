// Command mink-plugin-objstore-azure keeps Mink's objects in Azure Blob Storage.
package main

import (
	"context"
	"fmt"
	"hash/crc64"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// open makes a store of a container and asks for one key.
func open(ctx context.Context, uri string, options map[string]string) (objstore.Store, error) {
	cfg, err := readConfig(uri, options)
	if err != nil {
		return nil, err
	}
	web, err := cloudstore.NewClient(cfg.limits, nil)
	if err != nil {
		return nil, err
	}
	client, err := cfg.client(web, nil)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	return cloudstore.Open(ctx, uri, &service{cfg: cfg, container: client, web: web, uploads: newUploads()}, cfg.prefix, cfg.limits)
}

// service is one container; see cloudstore.Service for the methods. An object's
// version is its ETag without the quotes, which listings leave out.
type service struct {
	cfg       config
	container *container.Client
	web       *cloudstore.Client
	uploads   *uploads
}

var (
	_ cloudstore.Service = (*service)(nil)
	_ cloudstore.Parts   = (*service)(nil)
)

// Capabilities has Azure's documented limits, with pages of 1,000 keys of the
// 5,000 that it would give. The latency is that of a put of some KiB from the
// account's own region.
func (s *service) Capabilities() objstore.Capabilities {
	return objstore.Capabilities{
		CreateOnlyPut: true, CompareAndSwap: true, ListPageMax: 1000,
		PutSizeMax: 5000 << 20, PartSizeMin: 1, PartSizeMax: 4000 << 20,
		PutLatency: 30 * time.Millisecond, Local: s.cfg.custom && cloudstore.Loopback(s.cfg.endpoint),
	}
}

// Put sends the bytes with their CRC-64 (the service's own kind; it has no
// CRC-32C), which the service checks.
func (s *service) Put(ctx context.Context, w cloudstore.Write) (string, error) {
	out, err := s.container.NewBlockBlobClient(w.Name).Upload(ctx, w.Body(), &blockblob.UploadOptions{
		TransactionalValidation: checksum(w.Chunks),
		AccessConditions:        conditions(w.CreateOnly, w.IfMatch),
		Tier:                    s.tier(),
	})
	if err != nil {
		return "", conditional(err, w.CreateOnly, w.IfMatch != "")
	}
	return version(out.ETag), nil
}

// crc64Table is of the polynomial that the service documents.
var crc64Table = crc64.MakeTable(0x9A6C9329AC4BC9B5)

func checksum(chunks [][]byte) blob.TransferValidationType {
	var crc uint64
	for _, c := range chunks {
		crc = crc64.Update(crc, crc64Table, c)
	}
	return blob.TransferValidationTypeCRC64(crc)
}

func conditions(createOnly bool, ifMatch string) *blob.AccessConditions {
	c := &blob.ModifiedAccessConditions{}
	switch {
	case createOnly:
		c.IfNoneMatch = to.Ptr(azcore.ETagAny)
	case ifMatch != "":
		c.IfMatch = to.Ptr(azcore.ETag(`"` + ifMatch + `"`))
	default:
		return nil
	}
	return &blob.AccessConditions{ModifiedAccessConditions: c}
}

func version(tag *azcore.ETag) string {
	if tag == nil {
		return ""
	}
	return strings.Trim(string(*tag), `"`)
}

func (s *service) tier() *blob.AccessTier {
	if s.cfg.accessTier == "" {
		return nil
	}
	return to.Ptr(blob.AccessTier(s.cfg.accessTier))
}

func (s *service) Get(ctx context.Context, name string, offset, n int64) (cloudstore.Object, error) {
	ranged := offset > 0 || n >= 0
	out, err := s.container.NewBlobClient(name).DownloadStream(ctx, &blob.DownloadStreamOptions{
		Range: blob.HTTPRange{Offset: offset, Count: max(n, 0)}, // Count 0: to the end
	})
	if err != nil {
		return cloudstore.Object{}, brief(err)
	}
	o := cloudstore.Object{Body: out.Body, Size: deref(out.ContentLength), Version: version(out.ETag)}
	if ranged {
		_, total, _ := strings.Cut(deref(out.ContentRange), "/")
		if o.Size, err = strconv.ParseInt(total, 10, 64); err != nil {
			out.Body.Close()
			return cloudstore.Object{}, fmt.Errorf("answer to a range without the object's size: Content-Range is %q", deref(out.ContentRange))
		}
	}
	return o, nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (s *service) Head(ctx context.Context, name string) (objstore.ObjectInfo, error) {
	out, err := s.container.NewBlobClient(name).GetProperties(ctx, nil)
	if err != nil {
		return objstore.ObjectInfo{}, brief(err)
	}
	return objstore.ObjectInfo{Key: name, Size: deref(out.ContentLength), Modified: deref(out.LastModified), Version: version(out.ETag)}, nil
}

// List asks for one more than wanted: the service's start is inclusive.
func (s *service) List(ctx context.Context, p cloudstore.Page) ([]objstore.ObjectInfo, string, error) {
	out, err := s.container.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{
		Prefix: text(p.Prefix), StartFrom: text(p.After), Marker: text(p.Next), MaxResults: to.Ptr(int32(p.Limit + 1)),
	}).NextPage(ctx)
	if err != nil {
		return nil, "", brief(err)
	}
	objects := make([]objstore.ObjectInfo, 0, len(out.Segment.BlobItems))
	for _, b := range out.Segment.BlobItems {
		if b.Properties != nil && deref(b.Properties.ResourceType) == "directory" {
			continue // of an account with a hierarchical namespace
		}
		o := objstore.ObjectInfo{Key: deref(b.Name)}
		if b.Properties != nil {
			o.Size, o.Modified, o.Version = deref(b.Properties.ContentLength), deref(b.Properties.LastModified), version(b.Properties.ETag)
		}
		objects = append(objects, o)
	}
	return objects, deref(out.NextMarker), nil
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Delete is a request a name: the service's batches are requests in one envelope.
func (s *service) Delete(ctx context.Context, names []string) ([]error, error) {
	return cloudstore.Each(ctx, names, func(ctx context.Context, name string) error {
		_, err := s.container.NewBlobClient(name).Delete(ctx, &blob.DeleteOptions{DeleteSnapshots: to.Ptr(blob.DeleteSnapshotsOptionTypeInclude)})
		if bloberror.HasCode(err, bloberror.BlobNotFound) {
			return nil
		}
		return brief(err)
	}), nil
}

// Close drops the idle connections.
func (s *service) Close() error { s.web.Close(); return nil }
