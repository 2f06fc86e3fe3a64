// Command mink-plugin-objstore-s3 keeps Mink's objects in Amazon S3, S3 Express One
// Zone, or a service that speaks S3 and keeps its conditional writes.
package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// open makes a store of a bucket and asks for one key.
func open(ctx context.Context, uri string, options map[string]string) (objstore.Store, error) {
	cfg, err := readConfig(uri, options)
	if err != nil {
		return nil, err
	}
	http, err := cloudstore.NewClient(cfg.limits, nil)
	if err != nil {
		return nil, err
	}
	client, err := cfg.client(ctx, http)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	return cloudstore.Open(ctx, uri, &service{cfg: cfg, client: client, http: http}, cfg.prefix, cfg.limits)
}

// service is one bucket; see cloudstore.Service for the methods.
type service struct {
	cfg    config
	client *s3.Client
	http   *cloudstore.Client
}

var (
	_ cloudstore.Service = (*service)(nil)
	_ cloudstore.Parts   = (*service)(nil)
)

// Capabilities has Amazon's documented limits. The latencies are those of a put of
// some KiB from the bucket's own region.
func (s *service) Capabilities() objstore.Capabilities {
	c := objstore.Capabilities{
		CreateOnlyPut: true, CompareAndSwap: true, ListPageMax: 1000,
		PutSizeMax: 5 << 30, PartSizeMin: 5 << 20, PartSizeMax: 5 << 30,
		PutLatency: 30 * time.Millisecond, Local: cloudstore.Loopback(s.cfg.endpoint),
	}
	if s.cfg.express() {
		c.PutLatency = 5 * time.Millisecond
	}
	return c
}

// Put sends the bytes with their CRC-32C in a signed header, so that the payload
// itself need not be signed: over https it is not. Over http it is, for a
// checksum is no protection against somebody on the way.
func (s *service) Put(ctx context.Context, w cloudstore.Write) (string, error) {
	in := &s3.PutObjectInput{
		Bucket: &s.cfg.bucket, Key: &w.Name, Body: w.Body(), ContentLength: &w.Size,
		ChecksumCRC32C: aws.String(checksumText(w.CRC32C)), StorageClass: s.cfg.storageClass,
		ServerSideEncryption: s.cfg.sse, SSEKMSKeyId: text(s.cfg.kmsKeyID), IfMatch: text(w.IfMatch),
	}
	if w.CreateOnly {
		in.IfNoneMatch = aws.String("*")
	}
	out, err := s.client.PutObject(ctx, in, func(o *s3.Options) {
		if !s.cfg.plain() {
			o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
		}
	})
	if err != nil {
		return "", conditional(err, w.CreateOnly, w.IfMatch != "")
	}
	return aws.ToString(out.ETag), nil
}

func (s *service) Get(ctx context.Context, name string, offset, n int64) (cloudstore.Object, error) {
	in := &s3.GetObjectInput{Bucket: &s.cfg.bucket, Key: &name}
	switch {
	case n >= 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", offset, offset+n-1))
	case offset > 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", offset))
	default:
		in.ChecksumMode = types.ChecksumModeEnabled
	}
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		return cloudstore.Object{}, err
	}
	o := cloudstore.Object{Body: out.Body, Size: aws.ToInt64(out.ContentLength), Version: aws.ToString(out.ETag)}
	if in.Range != nil {
		_, total, _ := strings.Cut(aws.ToString(out.ContentRange), "/")
		if o.Size, err = strconv.ParseInt(total, 10, 64); err != nil {
			out.Body.Close()
			return cloudstore.Object{}, fmt.Errorf("answer to a range without the object's size: Content-Range is %q", aws.ToString(out.ContentRange))
		}
		return o, nil
	}
	if sum, err := base64.StdEncoding.DecodeString(aws.ToString(out.ChecksumCRC32C)); err == nil && len(sum) == 4 && out.ChecksumType != types.ChecksumTypeComposite {
		o.CRC32C = aws.Uint32(binary.BigEndian.Uint32(sum))
	}
	return o, nil
}

func (s *service) Head(ctx context.Context, name string) (objstore.ObjectInfo, error) {
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.cfg.bucket, Key: &name})
	if err != nil {
		return objstore.ObjectInfo{}, err
	}
	return objstore.ObjectInfo{Key: name, Size: aws.ToInt64(out.ContentLength), Modified: seconds(out.LastModified), Version: aws.ToString(out.ETag)}, nil
}

func (s *service) List(ctx context.Context, p cloudstore.Page) ([]objstore.ObjectInfo, string, error) {
	if s.cfg.express() {
		return s.listUnordered(ctx, p)
	}
	return s.list(ctx, p)
}

func (s *service) list(ctx context.Context, p cloudstore.Page) ([]objstore.ObjectInfo, string, error) {
	out, err := s.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
		Bucket: &s.cfg.bucket, Prefix: text(p.Prefix), StartAfter: text(p.After), ContinuationToken: text(p.Next),
		MaxKeys: aws.Int32(int32(p.Limit)), EncodingType: types.EncodingTypeUrl,
	})
	if err != nil {
		return nil, "", err
	}
	objects := make([]objstore.ObjectInfo, len(out.Contents))
	for i, o := range out.Contents {
		name := aws.ToString(o.Key)
		if out.EncodingType == types.EncodingTypeUrl { // asked for, but not every service does it
			if name, err = url.QueryUnescape(name); err != nil {
				return nil, "", fmt.Errorf("list: key %q: %w", aws.ToString(o.Key), err)
			}
		}
		objects[i] = objstore.ObjectInfo{Key: name, Size: aws.ToInt64(o.Size), Modified: seconds(o.LastModified), Version: aws.ToString(o.ETag)}
	}
	next := ""
	if aws.ToBool(out.IsTruncated) {
		next = aws.ToString(out.NextContinuationToken)
	}
	return objects, next, nil
}

// listUnordered lists a directory bucket, which knows no order and no start, and
// takes only whole directories as a prefix: all of it is read for every page.
func (s *service) listUnordered(ctx context.Context, p cloudstore.Page) ([]objstore.ObjectInfo, string, error) {
	after := max(p.After, p.Next) // Next is the last name of the page before
	all := cloudstore.Page{Prefix: p.Prefix[:strings.LastIndexByte(p.Prefix, '/')+1], Limit: 1000}
	var found []objstore.ObjectInfo
	for {
		objects, next, err := s.list(ctx, all)
		if err != nil {
			return nil, "", err
		}
		for _, o := range objects {
			if strings.HasPrefix(o.Key, p.Prefix) && o.Key > after {
				found = append(found, o)
			}
		}
		if next == "" {
			break
		}
		all.Next = next
	}
	slices.SortFunc(found, func(a, b objstore.ObjectInfo) int { return strings.Compare(a.Key, b.Key) })
	if len(found) <= p.Limit {
		return found, "", nil
	}
	found = found[:p.Limit]
	return found, found[p.Limit-1].Key, nil
}

// Delete is one request for up to 1,000 names.
func (s *service) Delete(ctx context.Context, names []string) ([]error, error) {
	ids := make([]types.ObjectIdentifier, len(names))
	at := make(map[string]int, len(names))
	for i, name := range names {
		ids[i].Key = &names[i]
		at[name] = i
	}
	out, err := s.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: &s.cfg.bucket, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c,
		Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)},
	})
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(names))
	for _, e := range out.Errors {
		i, ok := at[aws.ToString(e.Key)]
		if !ok {
			return nil, fmt.Errorf("delete: the answer names the key %q, which was not asked for: %s", aws.ToString(e.Key), aws.ToString(e.Code))
		}
		if code := aws.ToString(e.Code); code != "NoSuchKey" {
			errs[i] = &codeError{code: code, message: aws.ToString(e.Message)}
		}
	}
	return errs, nil
}

// Close drops the idle connections.
func (s *service) Close() error { s.http.Close(); return nil }

func checksumText(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// text is nil for "": the library sends a header for everything else.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// seconds cuts what a listing has and a head has not.
func seconds(t *time.Time) time.Time { return aws.ToTime(t).Truncate(time.Second) }
