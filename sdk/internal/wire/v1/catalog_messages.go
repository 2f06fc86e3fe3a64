package wire

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mink-project/mink/sdk/catalog"
	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
)

// metadataMax leaves room in a message for what comes with the metadata of a table.
const metadataMax = messageMax - 1<<20

// pageNamesMax bounds a page that a plugin answers, whatever was asked for.
const pageNamesMax = 100_000

func encodeCatalogDescription(d catalog.Description) *pb.CatalogDescription {
	return &pb.CatalogDescription{
		Name: d.Name, Version: d.Version, Commit: pb.CatalogCommit(d.Commit), VendsCredentials: d.VendsCredentials,
		Renames: d.Renames, ForbiddenProperties: d.ForbiddenProperties, PlainNames: d.PlainNames,
	}
}

// decodeCatalogDescription turns a way to commit that this side does not know into 0,
// which nothing accepts.
func decodeCatalogDescription(d *pb.CatalogDescription) catalog.Description {
	commit := catalog.Commit(0)
	if c := d.GetCommit(); c == pb.CatalogCommit_COMMITS_UPDATES || c == pb.CatalogCommit_SWAPS_METADATA {
		commit = catalog.Commit(c) //nolint:gosec // one of two
	}
	return catalog.Description{
		Name: d.GetName(), Version: d.GetVersion(), Commit: commit, VendsCredentials: d.GetVendsCredentials(),
		Renames: d.GetRenames(), ForbiddenProperties: d.GetForbiddenProperties(), PlainNames: d.GetPlainNames(),
	}
}

func encodeIdentifier(id catalog.Identifier) *pb.TableIdentifier {
	return &pb.TableIdentifier{Namespace: id.Namespace, Name: id.Name}
}

func decodeIdentifier(id *pb.TableIdentifier) catalog.Identifier {
	return catalog.Identifier{Namespace: id.GetNamespace(), Name: id.GetName()}
}

func encodeTable(t catalog.LoadTableResponse) *pb.LoadTableResponse {
	out := &pb.LoadTableResponse{MetadataLocation: t.MetadataLocation, Metadata: t.Metadata, Version: t.Version, Config: t.Config}
	for _, c := range t.Credentials {
		vended := &pb.VendedCredential{Prefix: c.Prefix, Options: c.Options}
		if !c.Expires.IsZero() {
			vended.Expires = timestamppb.New(c.Expires)
		}
		out.Credentials = append(out.Credentials, vended)
	}
	return out
}

// decodeTable checks what the kind of catalog owes: metadata, or their location.
func decodeTable(commit catalog.Commit, t *pb.LoadTableResponse) (catalog.LoadTableResponse, error) {
	out := catalog.LoadTableResponse{MetadataLocation: t.GetMetadataLocation(), Version: t.GetVersion(), Config: t.GetConfig()}
	if len(t.GetMetadata()) > 0 {
		out.Metadata = t.GetMetadata()
	}
	for _, c := range t.GetCredentials() {
		vended := catalog.Credential{Prefix: c.GetPrefix(), Options: c.GetOptions()}
		if e := c.GetExpires(); e != nil {
			if !e.IsValid() {
				return catalog.LoadTableResponse{}, protocolError("credentials that expire at no time")
			}
			vended.Expires = e.AsTime().In(time.UTC)
		}
		out.Credentials = append(out.Credentials, vended)
	}
	switch {
	case commit == catalog.CommitsUpdates && !json.Valid(out.Metadata):
		return catalog.LoadTableResponse{}, protocolError("%d bytes of metadata that are no JSON", len(out.Metadata))
	case commit == catalog.SwapsMetadata && out.MetadataLocation == "":
		return catalog.LoadTableResponse{}, protocolError("a table without the location of its metadata")
	}
	return out, nil
}

// checkTexts refuses what no message can carry.
func checkTexts(texts ...string) error {
	for _, s := range texts {
		if !utf8.ValidString(s) {
			return fmt.Errorf("%w: %.80q is no UTF-8", catalog.ErrInvalid, s)
		}
	}
	return nil
}

func checkMap(m map[string]string) error {
	return checkTexts(append(slices.Collect(maps.Keys(m)), slices.Collect(maps.Values(m))...)...)
}

// checkPage refuses a page that is not in order, or after which a caller would ask for
// the same again.
func checkPage(names []string, startAfter string, limit int, more bool) error {
	if more && len(names) == 0 || len(names) > pageNamesMax || limit > 0 && len(names) > limit {
		return protocolError("a page of %d names where %d were asked for", len(names), limit)
	}
	for _, n := range names {
		if n <= startAfter {
			return protocolError("%.80q comes after %.80q in a page", n, startAfter)
		}
		startAfter = n
	}
	return nil
}
