// Package awsauth finds the region and the credentials of AWS for catalog plugins, as
// AWS's own tools do.
package awsauth

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/smithy-go/logging"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/plugin"
)

// Options are the options of Config.
var Options = []plugin.Option{
	{Name: "region", Doc: "AWS region; without it AWS_REGION or the profile's"},
	{Name: "profile", Doc: "profile of the shared AWS configuration to take region and credentials from"},
	{Name: "access_key_id", Doc: "access key; without it the default chain: environment, shared files, web identity, container and machine roles"},
	{Name: "secret_access_key", Doc: "secret of access_key_id", Secret: true},
	{Name: "session_token", Doc: "token of temporary credentials", Secret: true},
}

// Config is what the options say.
type Config struct {
	region, profile                            string
	accessKeyID, secretAccessKey, sessionToken string
}

// Read reads the Options, and refuses those that do not go together.
func Read(o *cloudstore.Options) Config {
	c := Config{
		region: o.Text("region"), profile: o.Text("profile"),
		accessKeyID: o.Text("access_key_id"), secretAccessKey: o.Text("secret_access_key"), sessionToken: o.Text("session_token"),
	}
	if (c.accessKeyID == "") != (c.secretAccessKey == "") {
		o.Refuse("access_key_id and secret_access_key go together")
	}
	if c.sessionToken != "" && c.accessKeyID == "" {
		o.Refuse("session_token needs access_key_id and secret_access_key")
	}
	if c.accessKeyID != "" && c.profile != "" {
		o.Refuse("profile and access_key_id are two ways to give credentials: give one")
	}
	return c
}

// Given says whether any option was set.
func (c Config) Given() bool { return c != Config{} }

// Load finds region and credentials. ErrInvalid without a region, ErrUnauthorized
// without credentials. The configuration's retries are off.
func (c Config) Load(ctx context.Context, client aws.HTTPClient) (aws.Config, error) {
	load := []func(*awsconfig.LoadOptions) error{awsconfig.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} })}
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
		return cfg, fmt.Errorf("%w: AWS configuration: %w", catalog.ErrInvalid, err)
	}
	if cfg.Region == "" {
		return cfg, fmt.Errorf("%w: no region: set the option region, or AWS_REGION", catalog.ErrInvalid)
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		if ctx.Err() != nil {
			return cfg, fmt.Errorf("look for credentials: %w: %w", ctx.Err(), err)
		}
		return cfg, fmt.Errorf("%w: no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, a role, or the options access_key_id and secret_access_key: %w", catalog.ErrUnauthorized, err)
	}
	cfg.HTTPClient = client
	cfg.Logger = logging.LoggerFunc(func(_ logging.Classification, format string, v ...any) {
		slog.Debug("AWS library: " + fmt.Sprintf(format, v...))
	})
	return cfg, nil
}
