// Package catalog is the DRAFT of the contract of lake catalogs: where Mink
// registers the Iceberg tables that it writes, such as a REST catalog or Glue. It
// is experimental: nothing uses it yet, no conformance kit proves it, and it will
// change until both are there.
//
// A catalog maps a table's name to the location of its newest metadata, and
// changes that mapping by compare-and-swap. There are two kinds, and Description
// says which one a catalog is:
//
//	CommitsUpdates  the catalog computes the metadata itself from requirements and
//	                updates, as the Iceberg REST specification has them: a Committer
//	SwapsMetadata   the caller writes the new metadata file through its own store,
//	                and the catalog moves the pointer: a Swapper
//
// Catalogs are safe for concurrent use by several processes: of two changes that
// were planned on the same state, one succeeds and the other gets ErrConflict.
package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// The error sentinels of the contract, shared with the other kinds of plugin.
// Any other error is taken for ErrUnavailable, from CommitTable, SwapMetadata and
// CreateTable for ErrUnknownOutcome.
var (
	ErrNotExist       = objstore.ErrNotExist       // no such table or namespace
	ErrAlreadyExists  = objstore.ErrAlreadyExists  // the name is taken
	ErrConflict       = objstore.ErrConflict       // a requirement does not hold, or the pointer moved; nothing was changed
	ErrFenced         = mink.ErrFenced             // the catalog knows of a newer owner
	ErrInvalid        = objstore.ErrInvalid        // it can never succeed as written
	ErrUnauthorized   = objstore.ErrUnauthorized   // credentials are refused, or expired and cannot be renewed
	ErrThrottled      = objstore.ErrThrottled      // pause; see objstore.ThrottledError
	ErrUnavailable    = objstore.ErrUnavailable    // not now; nothing was changed
	ErrUnknownOutcome = objstore.ErrUnknownOutcome // it may have happened, or may yet: load the table and look
	ErrCorrupt        = objstore.ErrCorrupt        // what the catalog holds fails its checks
	ErrUnimplemented  = objstore.ErrUnimplemented  // the catalog cannot do this at all
)

// Commit is how a catalog changes a table.
type Commit uint8

// The ways. 0 is none.
const (
	CommitsUpdates Commit = 1
	SwapsMetadata  Commit = 2
)

// Description is what a catalog is and can do, as data.
type Description struct {
	Name    string // of the kind of catalog, "rest"
	Version string // of its code, for people
	Commit  Commit // which companion it has
	// VendsCredentials: LoadTable may answer credentials for the table's files.
	VendsCredentials bool
	// Renames: RenameTable works. Without it the answer is ErrUnimplemented.
	Renames bool
	// ForbiddenProperties are table properties that the catalog refuses; a name that
	// ends with * stands for all with the prefix.
	ForbiddenProperties []string
}

// Identifier names a table.
type Identifier struct {
	Namespace []string // at least one level
	Name      string
}

// Catalog is what every catalog does. Each is a Committer or a Swapper besides.
type Catalog interface {
	// Describe answers the same for the life of the catalog. It does not block.
	Describe() Description

	// CreateNamespace makes a namespace and those above it. One that is there is no
	// error, and keeps its properties.
	CreateNamespace(ctx context.Context, req CreateNamespaceRequest) (CreateNamespaceResponse, error)

	// LoadTable answers a table's newest metadata. What it answers is what a commit
	// that was acknowledged before made of the table, or something newer.
	LoadTable(ctx context.Context, req LoadTableRequest) (LoadTableResponse, error)

	// CreateTable makes a table: ErrAlreadyExists when the name is taken,
	// ErrNotExist when its namespace is absent. A catalog that SwapsMetadata is given
	// the location of a metadata file that was written; the other computes it.
	CreateTable(ctx context.Context, req CreateTableRequest) (LoadTableResponse, error)

	// DropTable takes the table out of the catalog; its files stay, unless Purge is
	// asked for and the catalog does that. A table that is absent is ErrNotExist.
	DropTable(ctx context.Context, req DropTableRequest) (DropTableResponse, error)

	// RenameTable: ErrAlreadyExists when the new name is taken.
	RenameTable(ctx context.Context, req RenameTableRequest) (RenameTableResponse, error)

	// Close frees what the catalog holds. Closing twice is allowed.
	Close() error
}

// Committer is the companion of catalogs that compute metadata.
type Committer interface {
	// CommitTable applies all updates or none. Requirements are checked against the
	// newest metadata in the same atomic step; one that does not hold is ErrConflict.
	// Nothing is tried again by the catalog.
	CommitTable(ctx context.Context, req CommitTableRequest) (LoadTableResponse, error)
}

// Swapper is the companion of catalogs that keep a pointer.
type Swapper interface {
	// SwapMetadata makes the pointer lead to another metadata file if it leads to
	// the expected one, else ErrConflict.
	SwapMetadata(ctx context.Context, req SwapMetadataRequest) (SwapMetadataResponse, error)
}

// CreateNamespaceRequest names the namespace.
type CreateNamespaceRequest struct {
	Namespace  []string
	Properties map[string]string
}

// CreateNamespaceResponse has no fields yet.
type CreateNamespaceResponse struct{}

// LoadTableRequest names the table.
type LoadTableRequest struct {
	Table Identifier
	// Credentials asks for credentials to the table's files, where the catalog
	// vends them.
	Credentials bool
}

// LoadTableResponse is a table's state.
type LoadTableResponse struct {
	MetadataLocation string          // URI of the metadata file; "" from a catalog that keeps none
	Metadata         json.RawMessage // of the table, as Iceberg has it; null from a Swapper
	Version          string          // for SwapMetadata, opaque; "" where the location alone counts
	Config           map[string]string
	Credentials      []Credential
}

// Credential opens the files below a prefix.
type Credential struct {
	Prefix  string            // of URIs; the longest that fits counts
	Options map[string]string // of the object store's plugin; secret
	Expires time.Time         // zero: not known
}

// CreateTableRequest describes the table.
type CreateTableRequest struct {
	Table            Identifier
	Location         string          // of the table's files; "": the catalog chooses
	Schema           json.RawMessage // as Iceberg has it, and so are the next two
	PartitionSpec    json.RawMessage
	SortOrder        json.RawMessage
	Properties       map[string]string
	MetadataLocation string // SwapsMetadata: the file that was written; the fields above may be empty
}

// CommitTableRequest is a change as the Iceberg REST specification has it.
type CommitTableRequest struct {
	Table        Identifier
	Requirements json.RawMessage // an array
	Updates      json.RawMessage // an array
}

// SwapMetadataRequest is a change of the pointer.
type SwapMetadataRequest struct {
	Table            Identifier
	ExpectedLocation string
	ExpectedVersion  string // as LoadTable answered it
	NewLocation      string
}

// SwapMetadataResponse is the state after it.
type SwapMetadataResponse struct{ Version string }

// DropTableRequest names the table.
type DropTableRequest struct {
	Table Identifier
	Purge bool // remove its files too
}

// DropTableResponse has no fields yet.
type DropTableResponse struct{}

// RenameTableRequest has both names.
type RenameTableRequest struct{ From, To Identifier }

// RenameTableResponse has no fields yet.
type RenameTableResponse struct{}

// Check says whether a catalog has the companion that it declares.
func Check(c Catalog) error {
	d := c.Describe()
	_, commits := c.(Committer)
	_, swaps := c.(Swapper)
	switch {
	case d.Commit == CommitsUpdates && commits, d.Commit == SwapsMetadata && swaps:
		return nil
	case d.Commit == CommitsUpdates:
		return fmt.Errorf("%w: catalog %q declares CommitsUpdates and is no Committer", ErrInvalid, d.Name)
	case d.Commit == SwapsMetadata:
		return fmt.Errorf("%w: catalog %q declares SwapsMetadata and is no Swapper", ErrInvalid, d.Name)
	}
	return fmt.Errorf("%w: catalog %q declares commit %d; must be CommitsUpdates or SwapsMetadata", ErrInvalid, d.Name, d.Commit)
}
