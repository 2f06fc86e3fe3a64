package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mink-project/mink/sdk/catalog"
)

// tableAnswer is the specification's LoadTableResult, and CommitTableResponse.
type tableAnswer struct {
	MetadataLocation string            `json:"metadata-location"`
	Metadata         json.RawMessage   `json:"metadata"`
	Config           map[string]string `json:"config"`
	Credentials      []struct {
		Prefix string            `json:"prefix"`
		Config map[string]string `json:"config"`
	} `json:"storage-credentials"`
}

// table makes the contract's answer; writes says that it is of a change.
func (a tableAnswer) table(op string, writes, credentials bool) (catalog.LoadTableResponse, error) {
	if len(a.Metadata) == 0 || string(a.Metadata) == "null" {
		err := fmt.Errorf("%s: %w: the catalog's answer has no metadata", op, catalog.ErrUnavailable)
		if writes {
			err = fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, err)
		}
		return catalog.LoadTableResponse{}, err
	}
	out := catalog.LoadTableResponse{MetadataLocation: a.MetadataLocation, Metadata: a.Metadata, Config: maps.Clone(a.Config)}
	if credentials {
		out.Credentials = a.vended()
	}
	maps.DeleteFunc(out.Config, func(name, _ string) bool { return secretConfig(name) })
	return out, nil
}

func secretConfig(name string) bool {
	return name == "token" || slices.ContainsFunc([]string{"access-key", "secret", "session-token", "sas-token", "oauth2.token", "credential"}, func(s string) bool {
		return strings.Contains(name, s)
	})
}

// vended are the credentials in the answer, as options of Mink's stores. Those without a
// place of their own are of the table's location.
func (a tableAnswer) vended() (out []catalog.Credential) {
	for _, c := range a.Credentials {
		if v, ok := storeOptions(c.Prefix, c.Config); ok {
			out = append(out, v)
		}
	}
	if len(out) > 0 {
		return out
	}
	var meta struct{ Location string }
	if json.Unmarshal(a.Metadata, &meta) != nil || meta.Location == "" {
		return nil
	}
	if v, ok := storeOptions(strings.TrimRight(meta.Location, "/")+"/", a.Config); ok {
		return []catalog.Credential{v}
	}
	return nil
}

// storeOptions turns the properties that Iceberg's clients share into the options of the
// store that opens the prefix; false when there is no credential for one among them.
func storeOptions(prefix string, config map[string]string) (catalog.Credential, bool) {
	scheme, rest, _ := strings.Cut(prefix, "://")
	out := catalog.Credential{Prefix: prefix, Options: map[string]string{}}
	take := func(option string, properties ...string) {
		for _, p := range properties {
			if v := config[p]; v != "" && out.Options[option] == "" {
				out.Options[option] = v
			}
		}
	}
	switch scheme {
	case "s3", "s3a", "s3n":
		take("access_key_id", "s3.access-key-id")
		take("secret_access_key", "s3.secret-access-key")
		take("session_token", "s3.session-token")
		take("endpoint", "s3.endpoint")
		take("region", "client.region", "s3.region")
		take("path_style", "s3.path-style-access")
		out.Expires = millis(config["s3.session-token-expires-at-ms"])
		return out, out.Options["access_key_id"] != "" && out.Options["secret_access_key"] != ""
	case "abfs", "abfss", "wasb", "wasbs", "az":
		_, host, _ := strings.Cut(rest, "@")
		host, _, _ = strings.Cut(host, "/")
		account, _, _ := strings.Cut(host, ".")
		take("sas_token", "adls.sas-token."+host, "adls.sas-token."+account, "adls.sas-token")
		out.Expires = millis(config["adls.sas-token-expires-at-ms."+host])
		return out, out.Options["sas_token"] != ""
	}
	return catalog.Credential{}, false
}

func millis(text string) time.Time {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(n).UTC()
}

// LoadTable implements catalog.Catalog.
func (c *restCatalog) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (resp catalog.LoadTableResponse, err error) {
	op := "load table " + req.Table.String()
	if err := req.Table.Validate(); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	in := call{method: http.MethodGet, query: "?snapshots=all"}
	if req.Credentials {
		in.header = http.Header{"X-Iceberg-Access-Delegation": {"vended-credentials"}}
	}
	var got tableAnswer
	in.out = &got
	if err := c.ask(ctx, op, in, tableAt(req.Table)); err != nil {
		return resp, err
	}
	return got.table(op, false, req.Credentials)
}

// CreateTable implements catalog.Catalog.
func (c *restCatalog) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (resp catalog.LoadTableResponse, err error) {
	op := "create table " + req.Table.String()
	if err := req.Table.Validate(); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	if len(req.Schema) == 0 {
		return resp, fmt.Errorf("%s: %w: this catalog computes metadata and needs a schema", op, catalog.ErrInvalid)
	}
	body := map[string]any{"name": req.Table.Name, "schema": req.Schema, "stage-create": false, "properties": orEmpty(req.Properties)}
	if req.Location != "" {
		body["location"] = req.Location
	}
	if len(req.PartitionSpec) > 0 {
		body["partition-spec"] = req.PartitionSpec
	}
	if len(req.SortOrder) > 0 {
		body["write-order"] = req.SortOrder
	}
	var got tableAnswer
	if err := c.ask(ctx, op, call{method: http.MethodPost, in: body, out: &got, writes: true}, at(req.Table.Namespace, "tables")); err != nil {
		return resp, err
	}
	return got.table(op, true, false)
}

// CommitTable implements catalog.Committer.
func (c *restCatalog) CommitTable(ctx context.Context, req catalog.CommitTableRequest) (resp catalog.LoadTableResponse, err error) {
	op := "commit to table " + req.Table.String()
	if err := req.Table.Validate(); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	list := func(raw json.RawMessage) json.RawMessage {
		if len(raw) == 0 || string(raw) == "null" {
			return json.RawMessage("[]")
		}
		return raw
	}
	body := map[string]any{"identifier": of(req.Table), "requirements": list(req.Requirements), "updates": list(req.Updates)}
	var got tableAnswer
	if err := c.ask(ctx, op, call{method: http.MethodPost, in: body, out: &got, writes: true, commit: true}, tableAt(req.Table)); err != nil {
		return resp, err
	}
	return got.table(op, true, false)
}

// DropTable implements catalog.Catalog.
func (c *restCatalog) DropTable(ctx context.Context, req catalog.DropTableRequest) (resp catalog.DropTableResponse, err error) {
	op := "drop table " + req.Table.String()
	if err := req.Table.Validate(); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	return resp, c.ask(ctx, op, call{method: http.MethodDelete, query: "?purgeRequested=" + strconv.FormatBool(req.Purge), writes: true}, tableAt(req.Table))
}

// RenameTable implements catalog.Catalog.
func (c *restCatalog) RenameTable(ctx context.Context, req catalog.RenameTableRequest) (resp catalog.RenameTableResponse, err error) {
	op := fmt.Sprintf("rename table %s to %s", req.From, req.To)
	if err := errors.Join(req.From.Validate(), req.To.Validate()); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	return resp, c.ask(ctx, op, call{
		method: http.MethodPost, in: map[string]any{"source": of(req.From), "destination": of(req.To)}, writes: true,
	}, func(*settled) []string { return []string{"tables", "rename"} })
}
