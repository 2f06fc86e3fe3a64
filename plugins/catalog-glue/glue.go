package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/glue"
	"github.com/aws/aws-sdk-go-v2/service/glue/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/mink-project/mink/plugins/internal/awsauth"
	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

// options are what the node's configuration, docs/plugins.md and --describe show.
var options = append(append([]plugin.Option{
	{Name: "catalog_id", Doc: "id of the Glue catalog: an AWS account; without it that of the credentials"},
	{Name: "endpoint", Doc: "URL of a service that speaks Glue's protocol, or of a private endpoint; none for Amazon's"},
	{Name: "archive", Doc: "true: Glue keeps the version of a table before each commit; Glue limits their number"},
}, awsauth.Options...), cloudstore.LimitOptions[1:]...) // nothing is repeated

// config is the options, read and checked.
type config struct {
	catalogID string   // "": the account's
	endpoint  *url.URL // nil: Amazon's
	archive   bool
	aws       awsauth.Config
	limits    cloudstore.Limits
}

// readConfig checks the options; ErrInvalid names all that is wrong.
func readConfig(options map[string]string) (config, error) {
	o := cloudstore.NewOptions(options)
	c := config{
		catalogID: o.Text("catalog_id"), endpoint: o.Endpoint("endpoint"), archive: o.Flag("archive", false),
		aws: awsauth.Read(o), limits: o.Limits(),
	}
	return c, o.Err()
}

// glueCatalog implements catalog.Catalog and catalog.Swapper. A table is an entry of Glue
// whose parameters name its newest metadata file, as Iceberg's own clients write it; it
// changes by UpdateTable with the version that was read.
type glueCatalog struct {
	cfg    config
	http   *cloudstore.Client
	glue   *glue.Client
	closed atomic.Bool
}

var (
	_ catalog.Catalog = (*glueCatalog)(nil)
	_ catalog.Swapper = (*glueCatalog)(nil)
)

func open(ctx context.Context, options map[string]string) (catalog.Catalog, error) {
	cfg, err := readConfig(options)
	if err != nil {
		return nil, err
	}
	h, err := cloudstore.NewClient(cfg.limits, nil)
	if err != nil {
		return nil, err
	}
	found, err := cfg.aws.Load(ctx, h.HTTP())
	if err != nil {
		h.Close()
		return nil, err
	}
	client := glue.NewFromConfig(found, func(o *glue.Options) {
		o.Retryer = aws.NopRetryer{}
		if cfg.endpoint != nil {
			o.BaseEndpoint = aws.String(cfg.endpoint.String())
		}
	})
	return &glueCatalog{cfg: cfg, http: h, glue: client}, nil
}

// Describe implements catalog.Catalog. Glue does not rename: Iceberg's clients make a new
// entry and delete the old one, between which others see two tables or none.
func (c *glueCatalog) Describe() catalog.Description {
	return catalog.Description{Name: "glue", Version: cloudstore.Version, Commit: catalog.SwapsMetadata, PlainNames: true}
}

// Close implements catalog.Catalog.
func (c *glueCatalog) Close() error {
	c.closed.Store(true)
	c.http.Close()
	return nil
}

func (c *glueCatalog) id() *string {
	if c.cfg.catalogID == "" {
		return nil
	}
	return aws.String(c.cfg.catalogID)
}

// database is a namespace's database. Names are plain: Glue folds capital letters, and Athena
// and Hive read no others.
func database(namespace []string) (string, error) {
	if err := catalog.CheckNamespace(namespace); err != nil {
		return "", err
	}
	if len(namespace) != 1 || !catalog.PlainName(namespace[0]) {
		return "", fmt.Errorf("%w: %.80q: a database of Glue is one name of a-z, 0-9 and _, up to 255", catalog.ErrInvalid, strings.Join(namespace, "."))
	}
	return namespace[0], nil
}

func checkTable(id catalog.Identifier) (string, error) {
	db, err := database(id.Namespace)
	if err != nil {
		return "", err
	}
	if err := id.Validate(); err != nil {
		return "", err
	}
	if !catalog.PlainName(id.Name) {
		return "", fmt.Errorf("%w: %.80q: a table of Glue is named with a-z, 0-9 and _, up to 255", catalog.ErrInvalid, id.Name)
	}
	return db, nil
}

// do makes one call of the library, which sends one request. writes says what an answer
// that did not come means.
func do[In, Out any](ctx context.Context, c *glueCatalog, op string, writes bool, call func(context.Context, *In, ...func(*glue.Options)) (*Out, error), in *In) (*Out, error) {
	if c.closed.Load() {
		return nil, fmt.Errorf("%s: %w: the catalog is closed", op, catalog.ErrUnavailable)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	out, err := call(traced, in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", op, classOf(ctx, err, writes, sent.Load()), err)
	}
	return out, nil
}

// classes are what the codes of Glue's errors mean; of those that are not here the status
// decides.
var classes = map[string]error{
	"EntityNotFoundException":              catalog.ErrNotExist,
	"AlreadyExistsException":               catalog.ErrAlreadyExists,
	"ConcurrentModificationException":      catalog.ErrConflict,
	"VersionMismatchException":             catalog.ErrConflict,
	"ConditionCheckFailureException":       catalog.ErrConflict,
	"ConflictException":                    catalog.ErrConflict,
	"InvalidInputException":                catalog.ErrInvalid,
	"ValidationException":                  catalog.ErrInvalid,
	"OperationNotSupportedException":       catalog.ErrUnimplemented,
	"AccessDeniedException":                catalog.ErrUnauthorized,
	"UnrecognizedClientException":          catalog.ErrUnauthorized,
	"InvalidSignatureException":            catalog.ErrUnauthorized,
	"IncompleteSignatureException":         catalog.ErrUnauthorized,
	"InvalidClientTokenId":                 catalog.ErrUnauthorized,
	"MissingAuthenticationToken":           catalog.ErrUnauthorized,
	"ExpiredTokenException":                catalog.ErrUnauthorized,
	"ExpiredToken":                         catalog.ErrUnauthorized,
	"GlueEncryptionException":              catalog.ErrUnauthorized,
	"ThrottlingException":                  catalog.ErrThrottled,
	"Throttling":                           catalog.ErrThrottled,
	"TooManyRequestsException":             catalog.ErrThrottled,
	"RequestLimitExceeded":                 catalog.ErrThrottled,
	"ResourceNumberLimitExceededException": catalog.ErrUnavailable,
	"ResourceNotReadyException":            catalog.ErrUnavailable,
	"ServiceUnavailableException":          catalog.ErrUnavailable,
}

func classOf(ctx context.Context, err error, writes, sent bool) error {
	unknown := func(class error) error {
		if writes && sent {
			return fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, class)
		}
		return class
	}
	var answer *smithyhttp.ResponseError
	status := 0
	if errors.As(err, &answer) {
		status = answer.HTTPStatusCode()
	}
	if api := smithy.APIError(nil); errors.As(err, &api) && status != 0 {
		switch class, known := classes[api.ErrorCode()]; {
		case known && errors.Is(class, catalog.ErrThrottled):
			return &objstore.ThrottledError{RetryAfter: cloudstore.RetryAfter(answer.HTTPResponse().Header)}
		case known:
			return class
		case status >= 500:
			return unknown(catalog.ErrUnavailable)
		}
		return catalog.ErrInvalid
	}
	switch {
	case ctx.Err() != nil:
		return unknown(ctx.Err())
	case status == 403 || status == 401:
		return catalog.ErrUnauthorized
	}
	return unknown(catalog.ErrUnavailable)
}

// The parameters of a table, as Iceberg's clients name them.
const (
	keyType     = "table_type" // "ICEBERG", in any case
	keyLocation = "metadata_location"
	keyPrevious = "previous_metadata_location"
)

func isIceberg(t types.Table) bool { return strings.EqualFold(t.Parameters[keyType], "ICEBERG") }
