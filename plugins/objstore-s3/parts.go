package main

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

// Parts carry no additional checksum: with one, S3 completes an upload only when
// its part numbers are 1, 2, 3 without a hole. Their bytes are covered by the
// SHA-256 of the signed payload instead, which S3 verifies.

func (s *service) Start(ctx context.Context, name string) (objstore.UploadID, error) {
	out, err := s.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &s.cfg.bucket, Key: &name, StorageClass: s.cfg.storageClass,
		ServerSideEncryption: s.cfg.sse, SSEKMSKeyId: text(s.cfg.kmsKeyID),
	})
	if err != nil {
		return "", err
	}
	return objstore.UploadID(aws.ToString(out.UploadId)), nil
}

func (s *service) PutPart(ctx context.Context, id objstore.UploadID, number int, w cloudstore.Write) (string, error) {
	out, err := s.client.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &s.cfg.bucket, Key: &w.Name, UploadId: aws.String(string(id)), PartNumber: aws.Int32(int32(number)),
		Body: w.Body(), ContentLength: &w.Size,
	})
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

func (s *service) Complete(ctx context.Context, name string, id objstore.UploadID, parts []objstore.Part, createOnly bool) (string, error) {
	done := make([]types.CompletedPart, len(parts))
	for i, p := range parts {
		done[i] = types.CompletedPart{PartNumber: aws.Int32(int32(p.Number)), ETag: aws.String(p.Tag)}
	}
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &s.cfg.bucket, Key: &name, UploadId: aws.String(string(id)),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: done},
	}
	if createOnly {
		in.IfNoneMatch = aws.String("*")
	}
	out, err := s.client.CompleteMultipartUpload(ctx, in)
	if err != nil {
		return "", conditional(err, createOnly, false)
	}
	return aws.ToString(out.ETag), nil
}

func (s *service) Abort(ctx context.Context, name string, id objstore.UploadID) error {
	_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &s.cfg.bucket, Key: &name, UploadId: aws.String(string(id))})
	if code(err) == "NoSuchUpload" {
		return nil
	}
	return err
}
