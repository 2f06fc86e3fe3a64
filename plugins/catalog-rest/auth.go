package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/objstore"
)

// auth lets requests in.
type auth interface {
	// authorize adds to a request, whose body is given, what lets it in, and answers
	// a word for it, for refused.
	authorize(ctx context.Context, req *http.Request, body []byte) (with string, err error)
	// refused is told that the catalog refused a request with that word, and answers
	// whether another attempt has something new to show.
	refused(with string) (again bool)
}

// open catalogs ask for nothing.
type openAuth struct{}

func (openAuth) authorize(context.Context, *http.Request, []byte) (string, error) { return "", nil }
func (openAuth) refused(string) bool                                              { return false }

type bearerAuth struct{ token string }

func (a bearerAuth) authorize(_ context.Context, req *http.Request, _ []byte) (string, error) {
	req.Header.Set("Authorization", "Bearer "+a.token)
	return "", nil
}
func (bearerAuth) refused(string) bool { return false }

// oauth2Auth fetches tokens for client credentials. One that expires within ten seconds
// is not used any more.
type oauth2Auth struct {
	source clientcredentials.Config
	client *http.Client

	mu    sync.Mutex // held while a token is fetched: all who wait take it
	token *oauth2.Token
}

func newOAuth2(c config, client *http.Client) *oauth2Auth {
	at := c.tokenURL
	if at == nil {
		at = c.uri.JoinPath("v1", "oauth", "tokens")
	}
	params := url.Values{}
	if c.audience != "" {
		params.Set("audience", c.audience)
	}
	var scopes []string
	if c.scope != "" {
		scopes = []string{c.scope}
	}
	return &oauth2Auth{client: client, source: clientcredentials.Config{
		ClientID: c.clientID, ClientSecret: c.secret, TokenURL: at.String(), Scopes: scopes, EndpointParams: params, AuthStyle: oauth2.AuthStyleInParams,
	}}
}

func (a *oauth2Auth) authorize(ctx context.Context, req *http.Request, _ []byte) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.token.Valid() {
		token, err := a.source.Token(context.WithValue(ctx, oauth2.HTTPClient, a.client))
		if err != nil {
			return "", a.failed(ctx, err)
		}
		a.token = token
	}
	a.token.SetAuthHeader(req)
	return a.token.AccessToken, nil
}

func (a *oauth2Auth) refused(with string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token != nil && a.token.AccessToken == with {
		a.token = nil
	}
	return true
}

// failed says why there is no token; nothing was asked of the catalog yet.
func (a *oauth2Auth) failed(ctx context.Context, err error) error {
	where, _ := url.Parse(a.source.TokenURL)
	if refused := (*oauth2.RetrieveError)(nil); errors.As(err, &refused) && refused.Response != nil {
		said := refused.ErrorCode
		if refused.ErrorDescription != "" {
			said += ": " + refused.ErrorDescription
		}
		text := fmt.Sprintf("the token server %s answers %d %.200s", where.Host, refused.Response.StatusCode, said)
		switch status := refused.Response.StatusCode; {
		case status == http.StatusTooManyRequests:
			return fmt.Errorf("%s: %w", text, throttled(refused.Response.Header))
		case status >= 500:
			return fmt.Errorf("%w: %s", catalog.ErrUnavailable, text)
		case status == http.StatusNotFound:
			return fmt.Errorf("%w: %s: is oauth2_server_uri right?", catalog.ErrUnauthorized, text)
		}
		return fmt.Errorf("%w: %s: check the options credential and scope", catalog.ErrUnauthorized, text)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fetch a token: %w", ctx.Err())
	}
	return fmt.Errorf("%w: fetch a token from %s: %w", catalog.ErrUnavailable, where.Host, err)
}

func throttled(h http.Header) error {
	return &objstore.ThrottledError{RetryAfter: retryAfter(h)}
}

// sigv4Auth signs for AWS.
type sigv4Auth struct {
	signer  *v4.Signer
	cfg     aws.Config
	service string
}

func newSigV4(ctx context.Context, c config, client *http.Client) (*sigv4Auth, error) {
	cfg, err := c.aws.Load(ctx, client)
	if err != nil {
		return nil, err
	}
	return &sigv4Auth{signer: v4.NewSigner(), cfg: cfg, service: c.signingName}, nil
}

func (a *sigv4Auth) authorize(ctx context.Context, req *http.Request, body []byte) (string, error) {
	got, err := a.cfg.Credentials.Retrieve(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("look for credentials: %w", ctx.Err())
	case err != nil:
		return "", fmt.Errorf("%w: AWS credentials: %w", catalog.ErrUnauthorized, err)
	}
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	req.Header.Set("X-Amz-Content-Sha256", hash)
	if err := a.signer.SignHTTP(ctx, got, req, hash, a.service, a.cfg.Region, time.Now()); err != nil {
		return "", fmt.Errorf("%w: sign a request: %w", catalog.ErrInvalid, err)
	}
	return got.AccessKeyID + got.SessionToken, nil
}

// refused forgets temporary credentials, which may have ended before their time.
func (a *sigv4Auth) refused(string) bool {
	cache, ok := a.cfg.Credentials.(*aws.CredentialsCache)
	if ok {
		cache.Invalidate()
	}
	return ok
}
