// Package catalog is the contract of lake catalogs: where Mink registers the Iceberg
// tables that it writes. The node's own is in SQLite or Postgres
// (core/builtin/sqlcatalog), others are plugins (plugin.Catalog); catalogtest is the
// conformance kit.
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
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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

	// ErrNotEmpty: the namespace has tables or namespaces below it.
	ErrNotEmpty = errors.New("namespace is not empty")
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
	// PlainNames: a namespace has one level, and names are PlainName, as Glue and Hive
	// have them, in small letters. Other names are ErrInvalid.
	PlainNames bool
	// ForbiddenProperties are table properties that the catalog refuses; a name that
	// ends with * stands for all with the prefix.
	ForbiddenProperties []string
}

// Identifier names a table.
type Identifier struct {
	Namespace []string // at least one level
	Name      string
}

// String joins the levels with dots, for messages.
func (i Identifier) String() string { return strings.Join(i.Namespace, ".") + "." + i.Name }

// nameMax is the longest level or name that CheckNamespace and Validate let pass, in bytes.
const nameMax = 1 << 10

// CheckNamespace refuses what is a namespace in no catalog, with ErrInvalid: none, a
// level that is empty, longer than 1 KiB, no UTF-8, or has a control character.
func CheckNamespace(namespace []string) error {
	if len(namespace) == 0 {
		return fmt.Errorf("%w: no namespace is given", ErrInvalid)
	}
	for _, level := range namespace {
		if err := checkName("a level of the namespace", level); err != nil {
			return err
		}
	}
	return nil
}

// Validate is CheckNamespace for a table's name too.
func (i Identifier) Validate() error {
	if err := CheckNamespace(i.Namespace); err != nil {
		return err
	}
	return checkName("the table's name", i.Name)
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: %s is empty", ErrInvalid, what)
	case len(name) > nameMax:
		return fmt.Errorf("%w: %s %.40q... has %d bytes, the limit is %d", ErrInvalid, what, name, len(name), nameMax)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%w: %s %.80q has control characters or is no UTF-8", ErrInvalid, what, name)
	}
	return nil
}

// plainNameMax is the longest plain name, in bytes.
const plainNameMax = 255

// PlainName says whether a name is of a-z, 0-9 and _ alone, 1 to 255 of them.
func PlainName(name string) bool {
	return name != "" && len(name) <= plainNameMax && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_'
	})
}

// CheckTable refuses a table that the catalog cannot have because of its names, with
// ErrInvalid: before anything is asked of it.
func (d Description) CheckTable(id Identifier) error {
	if err := id.Validate(); err != nil || !d.PlainNames {
		return err
	}
	if len(id.Namespace) != 1 {
		return fmt.Errorf("%w: namespaces of catalog %q have one level, %.80q has %d", ErrInvalid, d.Name, strings.Join(id.Namespace, "."), len(id.Namespace))
	}
	for _, n := range []struct{ what, name string }{{"namespace", id.Namespace[0]}, {"table", id.Name}} {
		if !PlainName(n.name) {
			return fmt.Errorf("%w: catalog %q takes names of a-z, 0-9 and _ alone, up to %d of them, and the %s is named %.80q", ErrInvalid, d.Name, plainNameMax, n.what, n.name)
		}
	}
	return nil
}

// Page is the part of names that a list request asks for, in byte order: those after
// startAfter, at most limit, or most when limit is 0 or more than that. For catalogs
// whose services list in another order.
func Page(names []string, startAfter string, limit, most int) (page []string, more bool) {
	if limit <= 0 || limit > most {
		limit = most
	}
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	i, found := slices.BinarySearch(names, startAfter)
	if found {
		i++
	}
	if names = names[i:]; len(names) > limit {
		return names[:limit], true
	}
	return names, false
}

// Forbids says whether the catalog refuses a table property.
func (d Description) Forbids(property string) bool {
	return slices.ContainsFunc(d.ForbiddenProperties, func(f string) bool {
		prefix, all := strings.CutSuffix(f, "*")
		return f == property || all && strings.HasPrefix(property, prefix)
	})
}

// Catalog is what every catalog does. Each is a Committer or a Swapper besides.
type Catalog interface {
	// Describe answers the same for the life of the catalog. It does not block.
	Describe() Description

	// CreateNamespace makes a namespace and those above it. One that is there is no
	// error, and keeps its properties.
	CreateNamespace(ctx context.Context, req CreateNamespaceRequest) (CreateNamespaceResponse, error)

	// LoadNamespace answers a namespace's properties, or ErrNotExist.
	LoadNamespace(ctx context.Context, req LoadNamespaceRequest) (LoadNamespaceResponse, error)

	// UpdateNamespace sets and removes properties in one step. ErrNotExist;
	// ErrInvalid when a property is to be both set and removed.
	UpdateNamespace(ctx context.Context, req UpdateNamespaceRequest) (UpdateNamespaceResponse, error)

	// DropNamespace: ErrNotExist, ErrNotEmpty.
	DropNamespace(ctx context.Context, req DropNamespaceRequest) (DropNamespaceResponse, error)

	// ListNamespaces answers the namespaces one level below the parent, in byte order
	// of their names. A parent that is absent is ErrNotExist.
	ListNamespaces(ctx context.Context, req ListNamespacesRequest) (ListNamespacesResponse, error)

	// ListTables answers the names of a namespace's tables, in byte order. A namespace
	// that is absent is ErrNotExist.
	ListTables(ctx context.Context, req ListTablesRequest) (ListTablesResponse, error)

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

	// RenameTable: ErrNotExist when the table, or the namespace of its new name, is
	// absent, ErrAlreadyExists when the new name is taken. The files stay where they are.
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
	// the expected one, else ErrConflict; ErrNotExist when there is no such table.
	// Nothing is tried again by the catalog.
	SwapMetadata(ctx context.Context, req SwapMetadataRequest) (SwapMetadataResponse, error)
}

// CreateNamespaceRequest names the namespace.
type CreateNamespaceRequest struct {
	Namespace  []string
	Properties map[string]string
}

// CreateNamespaceResponse says what was done.
type CreateNamespaceResponse struct{ Existed bool }

// LoadNamespaceRequest names the namespace.
type LoadNamespaceRequest struct{ Namespace []string }

// LoadNamespaceResponse is a namespace's state.
type LoadNamespaceResponse struct{ Properties map[string]string }

// UpdateNamespaceRequest is a change of a namespace's properties.
type UpdateNamespaceRequest struct {
	Namespace []string
	Set       map[string]string
	Remove    []string
}

// UpdateNamespaceResponse names the properties that were removed, in order; those
// that were not there are left out.
type UpdateNamespaceResponse struct{ Removed []string }

// DropNamespaceRequest names the namespace.
type DropNamespaceRequest struct{ Namespace []string }

// DropNamespaceResponse has no fields yet.
type DropNamespaceResponse struct{}

// ListNamespacesRequest asks for one page.
type ListNamespacesRequest struct {
	Parent     []string // none: the namespaces of the first level
	StartAfter string   // the last level of a namespace; exclusive; "": from the start
	Limit      int      // 0: the catalog's page
}

// ListNamespacesResponse is one page.
type ListNamespacesResponse struct {
	Namespaces [][]string // with all their levels
	More       bool       // go on after the last one's last level
}

// ListTablesRequest asks for one page.
type ListTablesRequest struct {
	Namespace  []string
	StartAfter string // a table's name; exclusive; "": from the start
	Limit      int    // 0: the catalog's page
}

// ListTablesResponse is one page.
type ListTablesResponse struct {
	Names []string
	More  bool // go on after the last name
}

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
	// ExpectedLocation: drop the table only while its metadata is there, else
	// ErrConflict: another may have taken the name. "": whatever it is. Swappers know it.
	ExpectedLocation string
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
