package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

const uriForm = "s3://BUCKET/PREFIX"

// options are what the node's configuration, docs/plugins.md and --describe show.
var options = append([]plugin.Option{
	{Name: "endpoint", Doc: "URL of a service that speaks S3; none for Amazon's"},
	{Name: "region", Doc: "region of the bucket; without it AWS_REGION or the profile's, and us-east-1 with an endpoint"},
	{Name: "path_style", Doc: "true: the bucket goes into the path of the URL and not into the host name; as if true with an endpoint"},
	{Name: "profile", Doc: "profile of the shared AWS configuration to take region and credentials from"},
	{Name: "access_key_id", Doc: "access key; without it the default chain: environment, shared files, web identity, container and machine roles"},
	{Name: "secret_access_key", Doc: "secret of access_key_id", Secret: true},
	{Name: "session_token", Doc: "token of temporary credentials", Secret: true},
	{Name: "sse", Doc: "encryption to ask for: AES256, aws:kms or aws:kms:dsse; none for the bucket's default"},
	{Name: "sse_kms_key_id", Doc: "key for aws:kms; none for the account's default key"},
	{Name: "storage_class", Doc: "storage class of new objects, such as INTELLIGENT_TIERING; none for STANDARD"},
}, cloudstore.LimitOptions...)

// config is the URI and the options, read and checked.
type config struct {
	bucket, prefix  string
	endpoint        *url.URL // nil: Amazon's
	region, profile string   // "": as the environment and the shared files have it
	pathStyle       bool
	accessKeyID     string // "": the default chain of credentials
	secretAccessKey string
	sessionToken    string
	sse             types.ServerSideEncryption
	kmsKeyID        string
	storageClass    types.StorageClass
	limits          cloudstore.Limits
}

// readConfig checks the URI and the options; ErrInvalid names all that is wrong.
func readConfig(uri string, options map[string]string) (config, error) {
	where, err := cloudstore.ParseURI(uri, uriForm, "s3")
	if err != nil {
		return config{}, err
	}
	o := cloudstore.NewOptions(options)
	c := config{
		bucket: where.Host, prefix: where.Path,
		endpoint: o.Endpoint("endpoint"), region: o.Text("region"), profile: o.Text("profile"),
		accessKeyID: o.Text("access_key_id"), secretAccessKey: o.Text("secret_access_key"), sessionToken: o.Text("session_token"),
		sse:          types.ServerSideEncryption(o.Word("sse", "AES256", "aws:kms", "aws:kms:dsse")),
		kmsKeyID:     o.Text("sse_kms_key_id"),
		storageClass: types.StorageClass(o.Text("storage_class")),
		limits:       o.Limits(),
	}
	c.pathStyle = o.Flag("path_style", c.endpoint != nil)
	if (c.accessKeyID == "") != (c.secretAccessKey == "") {
		o.Refuse("access_key_id and secret_access_key go together")
	}
	if c.sessionToken != "" && c.accessKeyID == "" {
		o.Refuse("session_token needs access_key_id and secret_access_key")
	}
	if c.accessKeyID != "" && c.profile != "" {
		o.Refuse("profile and access_key_id are two ways to give credentials: give one")
	}
	if c.kmsKeyID != "" && !strings.HasPrefix(string(c.sse), "aws:kms") {
		o.Refuse("sse_kms_key_id needs sse = aws:kms or aws:kms:dsse")
	}
	return c, o.Err()
}

// express says that the bucket is a directory bucket (S3 Express One Zone).
func (c config) express() bool { return strings.HasSuffix(c.bucket, "--x-s3") }

// client builds the library's client. Its own retries are off: cloudstore decides
// what may be sent twice.
func (c config) client(ctx context.Context, http s3.HTTPClient) (*s3.Client, error) {
	load := []func(*awsconfig.LoadOptions) error{}
	if c.region != "" {
		load = append(load, awsconfig.WithRegion(c.region))
	}
	if c.profile != "" {
		load = append(load, awsconfig.WithSharedConfigProfile(c.profile))
	}
	if c.accessKeyID != "" {
		load = append(load, awsconfig.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.accessKeyID, c.secretAccessKey, c.sessionToken)))
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("%w: AWS configuration: %w", objstore.ErrInvalid, err)
	}
	switch {
	case cfg.Region != "":
	case c.endpoint != nil:
		cfg.Region = "us-east-1" // what S3-compatible servers expect when they do not care
	default:
		return nil, fmt.Errorf("%w: no region: set the option region, or AWS_REGION", objstore.ErrInvalid)
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("look for credentials: %w: %w", ctx.Err(), err)
		}
		return nil, fmt.Errorf("%w: %s: %w", objstore.ErrUnauthorized, adviceNoCredentials, err)
	}
	return s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.HTTPClient = http
		o.Retryer = aws.NopRetryer{}
		o.Logger = logging.LoggerFunc(func(_ logging.Classification, format string, v ...any) {
			slog.Debug("AWS library: " + fmt.Sprintf(format, v...))
		})
		o.UsePathStyle = c.pathStyle
		// The checksums are ours: computed once, before the bytes reach the library.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
		if c.endpoint != nil {
			o.BaseEndpoint = aws.String(c.endpoint.String())
		}
	}), nil
}

// plain says that requests go over http, where the payload must be signed.
func (c config) plain() bool { return c.endpoint != nil && c.endpoint.Scheme == "http" }
