package sink

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
)

func compareBuckets(a, b mink.BucketRef) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Index, b.Index))
}

// Validate says whether it is a round id; "" is none.
func (r RoundID) Validate() error {
	if len(r) < 1 || len(r) > RoundIDLengthMax {
		return fmt.Errorf("%w: round id of %d bytes, must be 1..%d", ErrInvalid, len(r), RoundIDLengthMax)
	}
	for _, c := range []byte(r) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("%w: round id %q: only a-z, 0-9 and - may stand in it", ErrInvalid, string(r))
		}
	}
	return nil
}

func checkRound(round, base RoundID, fence mink.LeaseEpoch) error {
	if err := round.Validate(); err != nil {
		return err
	}
	if base != "" {
		if err := base.Validate(); err != nil {
			return fmt.Errorf("base: %w", err)
		}
	}
	if base == round {
		return fmt.Errorf("%w: round %s is its own base", ErrInvalid, round)
	}
	if fence < 1 {
		return fmt.Errorf("%w: round %s has fence %d, must be >= 1", ErrInvalid, round, fence)
	}
	return nil
}

// Validate checks round, base and fence.
func (r BeginRoundRequest) Validate() error { return checkRound(r.Round, r.Base, r.Fence) }

// Validate checks round, base, fence, the size of the staged state, and that no
// bucket stands in the ranges twice.
func (r CommitRequest) Validate() error {
	if err := checkRound(r.Round, r.Base, r.Fence); err != nil {
		return err
	}
	if len(r.Staged) > StagedBytesMax {
		return fmt.Errorf("%w: round %s: staged state of %d bytes, at most %d", ErrInvalid, r.Round, len(r.Staged), StagedBytesMax)
	}
	if len(r.Ranges) > RangesMax {
		return fmt.Errorf("%w: round %s: %d buckets, at most %d", ErrInvalid, r.Round, len(r.Ranges), RangesMax)
	}
	seen := make(map[mink.BucketRef]bool, len(r.Ranges))
	for _, x := range r.Ranges {
		if x.Start < 0 || x.End < x.Start {
			return fmt.Errorf("%w: round %s: bucket %s covers [%d, %d)", ErrInvalid, r.Round, x.Bucket, x.Start, x.End)
		}
		if seen[x.Bucket] {
			return fmt.Errorf("%w: round %s: bucket %s stands in it twice", ErrInvalid, r.Round, x.Bucket)
		}
		seen[x.Bucket] = true
	}
	return nil
}

// Validate checks the round and the size of the staged state.
func (r AbortRequest) Validate() error {
	if len(r.Staged) > StagedBytesMax {
		return fmt.Errorf("%w: round %s: staged state of %d bytes, at most %d", ErrInvalid, r.Round, len(r.Staged), StagedBytesMax)
	}
	return r.Round.Validate()
}

// Validate checks a request against the table as the handle knows it: columns,
// kinds of the rows, offsets.
func (r WriteRequest) Validate(spec TableSpec) error {
	rows := r.Batch.NumRows()
	switch {
	case r.Bucket.Table != spec.ID:
		return fmt.Errorf("%w: bucket %s is not of table %d (%s)", ErrInvalid, r.Bucket, spec.ID, spec.FullName())
	case len(r.PartitionValues) != len(spec.PartitionKeys):
		return fmt.Errorf("%w: bucket %s has %d partition values, table %s has %d partition keys", ErrInvalid, r.Bucket, len(r.PartitionValues), spec.FullName(), len(spec.PartitionKeys))
	case r.Start < 0 || r.End < r.Start:
		return fmt.Errorf("%w: bucket %s: offsets [%d, %d)", ErrInvalid, r.Bucket, r.Start, r.End)
	case rows > BatchRowsMax:
		return fmt.Errorf("%w: bucket %s: a batch of %d rows, at most %d", ErrInvalid, r.Bucket, rows, BatchRowsMax)
	case !r.Snapshot && rows > int64(r.End-r.Start):
		return fmt.Errorf("%w: bucket %s: %d rows in offsets [%d, %d)", ErrInvalid, r.Bucket, rows, r.Start, r.End)
	case len(spec.PrimaryKey) == 0 && (r.Changes != nil || r.Snapshot):
		return fmt.Errorf("%w: bucket %s of log table %s: kinds of changes, or a snapshot", ErrInvalid, r.Bucket, spec.FullName())
	case len(spec.PrimaryKey) > 0 && int64(len(r.Changes)) != rows:
		return fmt.Errorf("%w: bucket %s: %d kinds of changes for %d rows", ErrInvalid, r.Bucket, len(r.Changes), rows)
	}
	for i, c := range r.Changes {
		if c < mink.ChangeInsert || c > mink.ChangeDelete || r.Snapshot && c != mink.ChangeInsert {
			return fmt.Errorf("%w: bucket %s: row %d is %s", ErrInvalid, r.Bucket, i, c)
		}
	}
	return checkColumns(r.Batch.Schema(), spec)
}

func checkColumns(got *arrow.Schema, spec TableSpec) error {
	want := spec.Schema.Arrow
	if got.NumFields() != want.NumFields() {
		return fmt.Errorf("%w: a batch of %d columns for table %s, schema %d has %d", ErrInvalid, got.NumFields(), spec.FullName(), spec.Schema.ID, want.NumFields())
	}
	for i, f := range want.Fields() {
		if g := got.Field(i); g.Name != f.Name || !arrow.TypeEqual(g.Type, f.Type) {
			return fmt.Errorf("%w: column %d of a batch for table %s is %q %s, schema %d has %q %s", ErrInvalid, i, spec.FullName(), g.Name, g.Type, spec.Schema.ID, f.Name, f.Type)
		}
	}
	return nil
}

// FullName is "database.name".
func (s TableSpec) FullName() string { return s.Database + "." + s.Name }

// Validate checks ids, names, and that keys are columns.
func (s TableSpec) Validate() error {
	if s.ID < 1 || s.BucketCount < 1 {
		return fmt.Errorf("%w: table id %d, bucket count %d, both must be >= 1", ErrInvalid, s.ID, s.BucketCount)
	}
	for _, name := range []string{s.Database, s.Name} {
		if err := checkName(name); err != nil {
			return err
		}
	}
	if err := s.Schema.Validate(); err != nil {
		return fmt.Errorf("table %s: %w", s.FullName(), err)
	}
	for _, keys := range [][]string{s.PrimaryKey, s.PartitionKeys, s.BucketKeys} {
		for _, k := range keys {
			if !s.Schema.Arrow.HasField(k) {
				return fmt.Errorf("%w: table %s: key %q is no column", ErrInvalid, s.FullName(), k)
			}
		}
	}
	return nil
}

// checkName refuses what Mink's names cannot be, above all what a path could
// make something else of.
func checkName(name string) error {
	bad := strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.", r))
	})
	if len(name) < 1 || len(name) > 200 || bad >= 0 || name == "." || name == ".." {
		return fmt.Errorf("%w: %.200q is no name of a database or table", ErrInvalid, name)
	}
	return nil
}

// Validate checks that the version and the columns are there.
func (s Schema) Validate() error {
	if s.ID < 1 || s.Arrow == nil || s.Arrow.NumFields() == 0 {
		return fmt.Errorf("%w: schema %d must have an id from 1 and columns", ErrInvalid, s.ID)
	}
	return nil
}

// Validate checks an answer of Commit.
func (r CommitResponse) Validate() error { return checkSnapshot(r.Snapshot) }

func checkSnapshot(s string) error {
	if len(s) > SnapshotLengthMax || !utf8.ValidString(s) {
		return fmt.Errorf("%w: snapshot id of %d bytes, must be UTF-8 of at most %d", ErrInvalid, len(s), SnapshotLengthMax)
	}
	return nil
}

// Validate checks an answer of Recover: a round with its fence, or nothing at all.
func (c Committed) Validate() error {
	if c.Round == "" {
		if c.Fence != 0 || c.Snapshot != "" || len(c.Ends) != 0 {
			return fmt.Errorf("%w: no round is committed, but there are a fence, a snapshot or offsets", ErrInvalid)
		}
		return nil
	}
	if err := c.Round.Validate(); err != nil {
		return err
	}
	if c.Fence < 1 || len(c.Ends) > RangesMax {
		return fmt.Errorf("%w: committed round %s has fence %d and %d buckets", ErrInvalid, c.Round, c.Fence, len(c.Ends))
	}
	for b, end := range c.Ends {
		if end < 0 {
			return fmt.Errorf("%w: committed round %s: bucket %s ends at offset %d", ErrInvalid, c.Round, b, end)
		}
	}
	return checkSnapshot(c.Snapshot)
}

// Validate checks that every value is one of the declared ones.
func (d Description) Validate() error {
	switch {
	case d.Name == "" || len(d.Name) > 200 || !utf8.ValidString(d.Name+d.Version) || len(d.Version) > 200:
		return fmt.Errorf("%w: a sink's description needs a name of 1..200 bytes; name %.50q, version %.50q", ErrInvalid, d.Name, d.Version)
	case d.Delivery != AtLeastOnce && d.Delivery != ExactlyOnce:
		return fmt.Errorf("%w: sink %q declares delivery %d; must be AtLeastOnce or ExactlyOnce", ErrInvalid, d.Name, d.Delivery)
	case d.Changes < ChangesRefused || d.Changes > ChangesApplied:
		return fmt.Errorf("%w: sink %q declares changes %d; must be ChangesRefused, ChangesKept or ChangesApplied", ErrInvalid, d.Name, d.Changes)
	}
	return nil
}
