package scan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"

	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// keptTables is how many tables an Opener keeps: what the metadata of a pinned snapshot
// says does not change, and one request is read in many parts.
const keptTables = 16

// tableIDProperty is the property that says which table of Mink's a lake table is of.
const tableIDProperty = "mink.table-id"

// Opener opens snapshots of lake tables. Safe for concurrent use.
type Opener struct {
	load func(context.Context, catalog.Identifier) (*table.Table, error)

	mu   sync.Mutex
	kept []kept // the last used one first
}

// kept is a table as it was when a snapshot of it was opened.
type kept struct {
	table    mink.TableID
	snapshot int64
	loaded   *table.Table
}

// NewOpener reads tables by load, lake.Warehouse.Load.
func NewOpener(load func(context.Context, catalog.Identifier) (*table.Table, error)) *Opener {
	return &Opener{load: load}
}

// Plan answers the snapshot that reads of a table should use: the recorded one, or, when
// another engine expired that or none is recorded, the current one with how far Mink's
// tiering had come there. ends is nil for the recorded snapshot: what is recorded with it
// holds. A table that is not in the lake, or is another one under its name, wraps
// mink.ErrNotExist. While the catalog does not answer (mink.ErrUnavailable), a recorded
// snapshot that was opened here before serves on.
func (o *Opener) Plan(ctx context.Context, l Layout, recorded string) (snapshot string, ends map[mink.BucketRef]mink.Offset, err error) {
	t, err := o.loaded(ctx, l)
	if away := errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrThrottled); away && recorded != "" {
		// If another engine expired it meanwhile, its files are missing, and the read says so.
		if id, parseErr := parseID(recorded); parseErr == nil && o.find(l.Table, id) != nil {
			return recorded, nil, nil
		}
	}
	if err != nil {
		return "", nil, err
	}
	if recorded != "" {
		id, err := parseID(recorded)
		if err != nil {
			return "", nil, err
		}
		if t.SnapshotByID(id) != nil {
			o.keep(kept{l.Table, id, t})
			return recorded, nil, nil
		}
	}
	current := t.CurrentSnapshot()
	if current == nil {
		return "", nil, fmt.Errorf("lake table %v has no snapshot: %w", t.Identifier(), mink.ErrNotExist)
	}
	c, err := lake.SnapshotOffsets(ctx, t, current.SnapshotID)
	if errors.Is(err, sink.ErrCorrupt) {
		err = fmt.Errorf("%w: %w", mink.ErrCorrupt, err)
	}
	if err != nil {
		return "", nil, err
	}
	if c.Ends == nil {
		c.Ends = map[mink.BucketRef]mink.Offset{}
	}
	o.keep(kept{l.Table, current.SnapshotID, t})
	return strconv.FormatInt(current.SnapshotID, 10), c.Ends, nil
}

// Found is a lake table as its catalog has it.
type Found struct {
	Location  string   // of the table
	Metadata  string   // location of its newest metadata file
	Current   string   // id of the current snapshot, "": none
	Snapshots []string // ids of all that the metadata name
}

// Look answers what the catalog has of a table now. A table that is not in the lake, or is
// another one under its name, wraps mink.ErrNotExist.
func (o *Opener) Look(ctx context.Context, l Layout) (Found, error) {
	t, err := o.loaded(ctx, l)
	if err != nil {
		return Found{}, err
	}
	f := Found{Location: t.Location(), Metadata: t.MetadataLocation()}
	if s := t.CurrentSnapshot(); s != nil {
		f.Current = strconv.FormatInt(s.SnapshotID, 10)
	}
	for _, s := range t.Metadata().Snapshots() {
		f.Snapshots = append(f.Snapshots, strconv.FormatInt(s.SnapshotID, 10))
	}
	return f, nil
}

// Open pins a snapshot, by Iceberg's id in decimal.
func (o *Opener) Open(ctx context.Context, l Layout, snapshot string) (*Snapshot, error) {
	id, err := parseID(snapshot)
	if err != nil {
		return nil, err
	}
	if l.BucketOf == nil {
		l.BucketOf = lake.BucketOf
	}
	t := o.find(l.Table, id)
	if t == nil {
		if t, err = o.loaded(ctx, l); err != nil {
			return nil, err
		}
	}
	s, err := Open(t, id, l)
	if err == nil {
		o.keep(kept{l.Table, id, t})
	}
	return s, err
}

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, fmt.Errorf("%w lake snapshot %.40q: want the id of an Iceberg snapshot", mink.ErrInvalid, text)
	}
	return id, nil
}

// loaded is the table as its catalog has it now.
func (o *Opener) loaded(ctx context.Context, l Layout) (*table.Table, error) {
	d := l.Descriptor
	t, err := o.load(ctx, catalog.Identifier{Namespace: []string{d.Database}, Name: d.Table})
	if err != nil {
		return nil, fmt.Errorf("lake table %s: %w", d.Name(), classed(err))
	}
	if id := t.Properties()[tableIDProperty]; id != strconv.FormatInt(int64(l.Table), 10) {
		return nil, fmt.Errorf("lake table %s is of table %q, not of %d: it %w yet in the lake", d.Name(), id, l.Table, mink.ErrNotExist)
	}
	return t, nil
}

// classed gives an error of the catalog or of its files the class that callers of a node know.
// Refused credentials are the node's, and no fault of the request.
func classed(err error) error {
	for _, c := range []struct{ is, class error }{
		{catalog.ErrCorrupt, mink.ErrCorrupt}, {catalog.ErrThrottled, mink.ErrThrottled}, {catalog.ErrUnavailable, mink.ErrUnavailable},
		{catalog.ErrUnauthorized, mink.ErrUnavailable}, {catalog.ErrInvalid, mink.ErrUnsupported}, {catalog.ErrUnimplemented, mink.ErrUnsupported},
	} {
		if errors.Is(err, c.is) && !errors.Is(err, c.class) {
			return fmt.Errorf("%w: %w", c.class, err)
		}
	}
	return err
}

func (o *Opener) find(id mink.TableID, snapshot int64) *table.Table {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.kept {
		if k.table == id && k.snapshot == snapshot {
			return k.loaded
		}
	}
	return nil
}

func (o *Opener) keep(k kept) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := []kept{k}
	for _, old := range o.kept {
		if (old.table != k.table || old.snapshot != k.snapshot) && len(next) < keptTables {
			next = append(next, old)
		}
	}
	o.kept = next
}

// gone says of a file that is missing why that may be.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: a snapshot that was superseded for longer than read_grace is expired with its files; plan the read anew: %w", mink.ErrNotExist, err)
	}
	return err
}
