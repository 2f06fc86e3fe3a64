package lake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/objstore"
)

// A commit with a catalog that keeps a pointer:
//
//	read the pointer, read the metadata it leads to        (fresh: nothing is assumed)
//	check the requirements against that metadata           -> ErrConflict
//	apply the updates, write the new metadata file         (create-only, a name of its own)
//	move the pointer if it still leads to what was read    -> ErrConflict, ErrUnknownOutcome
//
// Nothing is tried again. When the pointer may have moved, the new file stays; only
// after a definite conflict it goes.

// Commit changes a table, or with table.AssertCreate makes it. All updates take
// effect, or none. catalog.ErrConflict: a requirement does not hold, or another commit
// was faster; catalog.ErrUnknownOutcome: load the table and look.
func (w *Warehouse) Commit(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update) (*table.Table, error) {
	return w.commit(ctx, id, reqs, updates, nil)
}

// commit asks check, if there is one, whether the change from base to next may be; base
// is nil when the table is made.
func (w *Warehouse) commit(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update, check func(base, next table.Metadata) error) (*table.Table, error) {
	var tbl *table.Table
	var err error
	if w.swapper == nil && check != nil {
		err = fmt.Errorf("%w: this catalog computes the metadata itself, and nothing could be checked of them", catalog.ErrUnimplemented)
	} else if w.swapper == nil {
		tbl, err = w.commitToCommitter(ctx, id, reqs, updates)
	} else {
		tbl, err = w.commitBySwap(ctx, id, reqs, updates, check)
	}
	if err != nil {
		return nil, fmt.Errorf("commit to lake table %s: %w", id, err)
	}
	return tbl, nil
}

func (w *Warehouse) commitToCommitter(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update) (*table.Table, error) {
	requirements, err := json.Marshal(append([]table.Requirement{}, reqs...))
	if err != nil {
		return nil, invalid(err)
	}
	changes, err := json.Marshal(append([]table.Update{}, updates...))
	if err == nil {
		changes, err = w.withoutForbidden(id, changes)
	}
	if err != nil {
		return nil, invalid(err)
	}
	got, err := w.committer.CommitTable(ctx, catalog.CommitTableRequest{Table: id, Requirements: requirements, Updates: changes})
	if err != nil {
		return nil, known(err)
	}
	meta, err := w.metadata(ctx, got)
	if err != nil {
		return nil, objstore.UnknownOutcome("commit", id.String(), err) // it has happened; what it made is not known
	}
	return w.bind(id, meta, got.MetadataLocation), nil
}

// withoutForbidden takes the table properties that the catalog refuses out of updates.
func (w *Warehouse) withoutForbidden(id catalog.Identifier, updates json.RawMessage) (json.RawMessage, error) {
	d := w.catalog.Describe()
	if len(d.ForbiddenProperties) == 0 {
		return updates, nil
	}
	var all []map[string]json.RawMessage
	if err := json.Unmarshal(updates, &all); err != nil {
		return nil, err
	}
	for _, u := range all {
		if string(u["action"]) != strconv.Quote(table.UpdateSetProperties) {
			continue
		}
		var set map[string]string
		if err := json.Unmarshal(u["updates"], &set); err != nil {
			return nil, err
		}
		for name := range set {
			if d.Forbids(name) {
				w.logger.Debug("a property of a lake table is left out, which its catalog refuses", "table", id.String(), "property", name)
				delete(set, name)
			}
		}
		left, err := json.Marshal(set)
		if err != nil {
			return nil, err
		}
		u["updates"] = left
	}
	return json.Marshal(all)
}

func (w *Warehouse) commitBySwap(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update, check func(base, next table.Metadata) error) (*table.Table, error) {
	at, base, err := w.look(ctx, id)
	create := slices.ContainsFunc(reqs, func(r table.Requirement) bool { return r.GetType() == table.AssertCreate().GetType() })
	if errors.Is(err, catalog.ErrNotExist) && create {
		return w.createByCommit(ctx, id, reqs, updates, check)
	}
	if err != nil {
		return nil, notChanged(err)
	}
	if err := require(base, reqs); err != nil {
		return nil, err
	}
	next, changed, err := apply(base, at.MetadataLocation, updates)
	if err != nil {
		return nil, err
	}
	if !changed {
		return w.bind(id, base, at.MetadataLocation), nil
	}
	if err := w.checkLocations(base, next); err != nil {
		return nil, err
	}
	if check != nil {
		if err := check(base, next); err != nil {
			return nil, err
		}
	}
	location, next, err := w.writeMetadata(ctx, next, versionOf(at.MetadataLocation, base)+1)
	if err != nil {
		return nil, err
	}
	_, err = w.swapper.SwapMetadata(ctx, catalog.SwapMetadataRequest{
		Table: id, ExpectedLocation: at.MetadataLocation, ExpectedVersion: at.Version, NewLocation: location,
	})
	if err != nil {
		return nil, w.settle(ctx, location, err)
	}
	w.deleteOldMetadata(ctx, base, next)
	return w.bind(id, next, location), nil
}

// createByCommit is a commit to a table that was staged: it is made of its updates.
func (w *Warehouse) createByCommit(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update, check func(base, next table.Metadata) error) (*table.Table, error) {
	if err := require(nil, reqs); err != nil {
		return nil, err
	}
	next, err := applyToNothing(updates, func() string { return w.NewLocation(id) })
	if err != nil {
		return nil, err
	}
	if err := w.checkLocations(nil, next); err != nil {
		return nil, err
	}
	if check != nil {
		if err := check(nil, next); err != nil {
			return nil, err
		}
	}
	tbl, err := w.createFrom(ctx, id, next)
	if errors.Is(err, catalog.ErrAlreadyExists) {
		return nil, fmt.Errorf("the table was made meanwhile: %w (%w)", catalog.ErrConflict, err)
	}
	return tbl, err
}

func require(base table.Metadata, reqs []table.Requirement) (err error) {
	defer recovered(&err)
	for _, r := range reqs {
		if err := r.Validate(base); err != nil {
			return fmt.Errorf("%w: %w", catalog.ErrConflict, err)
		}
	}
	return nil
}

// own makes updates that belong to this commit: applying them changes them.
func own(updates []table.Update) ([]table.Update, error) {
	raw, err := json.Marshal(append([]table.Update{}, updates...))
	if err != nil {
		return nil, invalid(err)
	}
	var copied table.Updates
	if err := json.Unmarshal(raw, &copied); err != nil {
		return nil, invalid(err)
	}
	return copied, nil
}

func apply(base table.Metadata, location string, updates []table.Update) (next table.Metadata, changed bool, err error) {
	defer recovered(&err)
	updates, err = own(updates)
	if err != nil {
		return nil, false, err
	}
	b, err := table.MetadataBuilderFromBase(base, location)
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", catalog.ErrCorrupt, err)
	}
	return build(b, updates)
}

func applyToNothing(updates []table.Update, newLocation func() string) (next table.Metadata, err error) {
	defer recovered(&err)
	updates, err = own(updates)
	if err != nil {
		return nil, err
	}
	version := table.DefaultFormatVersion
	located := false
	for _, u := range updates {
		switch u.Action() {
		case table.UpdateUpgradeFormatVersion:
			var asked struct {
				Version int `json:"format-version"`
			}
			raw, err := json.Marshal(u)
			if err == nil {
				err = json.Unmarshal(raw, &asked)
			}
			if err != nil {
				return nil, invalid(err)
			}
			version = asked.Version
		case table.UpdateSetLocation:
			located = true
		}
	}
	b, err := table.NewMetadataBuilder(version)
	if err != nil {
		return nil, invalid(err)
	}
	if err := b.SetUUID(uuid.New()); err != nil { // an update may say another
		return nil, err
	}
	if !located {
		if err := b.SetLoc(newLocation()); err != nil {
			return nil, err
		}
	}
	// Clients name them in various orders, and some need others to be there.
	slices.SortStableFunc(updates, func(a, b table.Update) int { return creationRank(a) - creationRank(b) })
	next, _, err = build(b, updates)
	return next, err
}

// creationOrder is the order in which a table is made of updates.
var creationOrder = []string{
	table.UpdateAssignUUID, table.UpdateUpgradeFormatVersion, table.UpdateSetLocation, table.UpdateAddSchema, table.UpdateSetCurrentSchema,
	table.UpdateAddSpec, table.UpdateSetDefaultSpec, table.UpdateAddSortOrder, table.UpdateSetDefaultSortOrder,
}

func creationRank(u table.Update) int {
	if i := slices.Index(creationOrder, u.Action()); i >= 0 {
		return i
	}
	return len(creationOrder)
}

func build(b *table.MetadataBuilder, updates []table.Update) (next table.Metadata, changed bool, err error) {
	for i, u := range updates {
		if err := u.Apply(b); err != nil {
			return nil, false, fmt.Errorf("update %d, %s: %w", i, u.Action(), invalid(err))
		}
	}
	if !b.HasChanges() {
		return nil, false, nil
	}
	if next, err = b.Build(); err != nil {
		return nil, false, invalid(err)
	}
	return next, true, nil
}

// checkLocations refuses metadata that names files which this lake cannot reach, where
// the base does not name them already: such a table could not be read, and one whose
// metadata goes elsewhere could not be committed to any more.
func (w *Warehouse) checkLocations(base, next table.Metadata) error {
	var had []table.Snapshot
	if base != nil {
		had = base.Snapshots()
	}
	if base == nil || base.Location() != next.Location() {
		if _, err := w.Key(next.Location()); err != nil {
			return fmt.Errorf("table location: %w", err)
		}
	}
	for _, key := range []string{table.WriteMetadataPathKey, table.WriteDataPathKey} {
		if p, ok := next.Properties()[key]; ok {
			if _, err := w.Key(strings.TrimRight(p, "/")); err != nil {
				return fmt.Errorf("property %s: %w", key, err)
			}
		}
	}
	for _, s := range next.Snapshots() {
		if slices.ContainsFunc(had, func(h table.Snapshot) bool { return h.SnapshotID == s.SnapshotID }) {
			continue
		}
		for _, location := range append(slices.Clone(s.ManifestLocations), s.ManifestList) {
			if location == "" && len(s.ManifestLocations) > 0 {
				continue
			}
			if _, err := w.Key(location); err != nil {
				return fmt.Errorf("manifest list of snapshot %d: %w", s.SnapshotID, err)
			}
		}
	}
	return nil
}

var versionPattern = regexp.MustCompile(`^v?(\d{1,9})[-.]`)

// versionOf is the number of a metadata file, for people: uuids tell files apart.
func versionOf(location string, meta table.Metadata) int {
	if m := versionPattern.FindStringSubmatch(path.Base(location)); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return len(slices.Collect(meta.PreviousFiles()))
}

// settle decides what becomes of a metadata file whose commit failed.
func (w *Warehouse) settle(ctx context.Context, location string, err error) error {
	err = known(err)
	definite := errors.Is(err, catalog.ErrConflict) || errors.Is(err, catalog.ErrNotExist) || errors.Is(err, catalog.ErrAlreadyExists)
	if definite && !errors.Is(err, catalog.ErrUnknownOutcome) {
		if err := w.files.With(ctx).Remove(location); err != nil {
			w.logger.Warn("metadata file of a lost commit stays", "file", location, "error", err)
		}
	}
	return err
}

// known: an error of a changing call that is of no class may have had an effect.
func known(err error) error {
	for _, class := range []error{
		catalog.ErrNotExist, catalog.ErrAlreadyExists, catalog.ErrConflict, catalog.ErrFenced, catalog.ErrInvalid, catalog.ErrUnauthorized,
		catalog.ErrThrottled, catalog.ErrUnavailable, catalog.ErrUnknownOutcome, catalog.ErrCorrupt, catalog.ErrUnimplemented, catalog.ErrNotEmpty,
	} {
		if errors.Is(err, class) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, err)
}

// notChanged is an error from before the pointer could have moved: its outcome is known
// whatever its own says.
func notChanged(err error) error {
	if errors.Is(err, catalog.ErrUnknownOutcome) {
		return fmt.Errorf("%w: nothing was committed: %v", catalog.ErrUnavailable, err) //nolint:errorlint // its class is wrong here
	}
	for _, class := range []error{catalog.ErrNotExist, catalog.ErrAlreadyExists, catalog.ErrInvalid, catalog.ErrUnauthorized, catalog.ErrThrottled, catalog.ErrUnavailable, catalog.ErrCorrupt, objstore.ErrNoSpace, objstore.ErrReadOnly} {
		if errors.Is(err, class) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
}

// deleteOldMetadata deletes the files that fell out of the metadata's log, if the
// table wants that.
func (w *Warehouse) deleteOldMetadata(ctx context.Context, base, next table.Metadata) {
	if !next.Properties().GetBool(table.MetadataDeleteAfterCommitEnabledKey, table.MetadataDeleteAfterCommitEnabledDefault) {
		return
	}
	kept := map[string]bool{}
	for f := range next.PreviousFiles() {
		kept[f.MetadataFile] = true
	}
	var gone []string
	for f := range base.PreviousFiles() {
		if !kept[f.MetadataFile] {
			gone = append(gone, f.MetadataFile)
		}
	}
	if len(gone) == 0 {
		return
	}
	if _, err := w.files.With(ctx).DeleteFiles(ctx, gone); err != nil {
		w.logger.Warn("old metadata files of a lake table stay", "files", len(gone), "error", err)
	}
}
