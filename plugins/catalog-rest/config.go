package main

import (
	"net/url"
	"strings"

	"github.com/mink-project/mink/plugins/internal/awsauth"
	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/plugin"
)

// options are what the node's configuration, docs/plugins.md and --describe show.
var options = append(append([]plugin.Option{
	{Name: "uri", Doc: "URL of the catalog, what comes before /v1/config"},
	{Name: "warehouse", Doc: "warehouse to ask the catalog for"},
	{Name: "prefix", Doc: "prefix of the catalog's paths; without it the one that the catalog names"},
	{Name: "token", Doc: "bearer token, for catalogs that ask for one", Secret: true},
	{Name: "credential", Doc: "CLIENT_ID:CLIENT_SECRET of OAuth2, for which tokens are fetched, and fetched anew before they expire or when one is refused", Secret: true},
	{Name: "oauth2_server_uri", Doc: "URL where tokens are fetched; without it /v1/oauth/tokens of the catalog"},
	{Name: "scope", Doc: "scope of the tokens", Default: "catalog"},
	{Name: "audience", Doc: "audience of the tokens, where the token server asks for one"},
	{Name: "sigv4", Doc: "true: requests are signed for AWS, with the options below"},
	{Name: "signing_name", Doc: "service that sigv4 signs for: execute-api, glue, s3tables", Default: "execute-api"},
	{Name: "forbidden_properties", Doc: "table properties that the catalog refuses, separated by commas, a.* for all that begin with a.; Mink leaves them out"},
}, awsauth.Options...), cloudstore.LimitOptions[1:]...) // nothing is repeated

// config is the options, read and checked.
type config struct {
	uri               *url.URL // without a slash at its end
	warehouse, prefix string
	token             string
	clientID, secret  string // of OAuth2; secret "": none
	tokenURL          *url.URL
	scope, audience   string
	sigv4             bool
	signingName       string
	aws               awsauth.Config
	forbidden         []string
	limits            cloudstore.Limits
}

// readConfig checks the options; ErrInvalid names all that is wrong.
func readConfig(options map[string]string) (config, error) {
	o := cloudstore.NewOptions(options)
	c := config{
		uri: o.Endpoint("uri"), warehouse: o.Text("warehouse"), prefix: strings.Trim(o.Text("prefix"), "/"), token: o.Text("token"),
		tokenURL: o.Endpoint("oauth2_server_uri"), scope: o.Text("scope"), audience: o.Text("audience"),
		sigv4: o.Flag("sigv4", false), signingName: o.Text("signing_name"), aws: awsauth.Read(o), limits: o.Limits(),
	}
	if c.uri == nil && o.Text("uri") == "" {
		o.Refuse("the option uri is not set: the catalog's URL, such as https://catalog.example.com/api/catalog")
	}
	if c.uri != nil {
		c.uri.Path = strings.TrimSuffix(strings.TrimRight(c.uri.Path, "/"), "/v1")
		c.uri.RawPath = ""
	}
	if credential := o.Text("credential"); credential != "" {
		id, secret, both := strings.Cut(credential, ":")
		if !both {
			id, secret = "", credential
		}
		c.clientID, c.secret = id, secret
		if secret == "" {
			o.Refuse("credential has no secret: want CLIENT_ID:CLIENT_SECRET")
		}
	}
	ways := 0
	for _, given := range []bool{c.token != "", c.secret != "", c.sigv4} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		o.Refuse("token, credential and sigv4 are different ways to be let in: give one")
	}
	if c.tokenURL != nil && c.secret == "" {
		o.Refuse("oauth2_server_uri needs credential")
	}
	if c.aws.Given() && !c.sigv4 {
		o.Refuse("region, profile and keys of AWS are for sigv4 = true")
	}
	for f := range strings.SplitSeq(o.Text("forbidden_properties"), ",") {
		if f = strings.TrimSpace(f); f != "" {
			c.forbidden = append(c.forbidden, f)
		}
	}
	return c, o.Err()
}
