package scan_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
)

// While the catalog is away reads are planned on the recorded snapshot, if it was opened
// before; every error of a catalog has a class that a node's callers know.
func TestPlanWithoutACatalog(t *testing.T) {
	s := schemaOf("k INT NOT NULL")
	l := newLake(t, t.TempDir(), 2, lakeFields(s))
	l.do(func(_ context.Context, tx *table.Transaction) error {
		return tx.SetProperties(iceberg.Properties{"mink.table-id": "7"})
	})
	id := l.append(s, []mergetest.Row{{int32(1)}})
	recorded := strconv.FormatInt(id, 10)
	layout := scan.Layout{Table: 7, Descriptor: &schema.Descriptor{Database: "db", Table: "t"}}
	var away error
	o := scan.NewOpener(func(context.Context, catalog.Identifier) (*table.Table, error) { return l.table, away })
	for _, c := range []struct{ err, class error }{
		{fmt.Errorf("x: %w", catalog.ErrUnavailable), mink.ErrUnavailable},
		{fmt.Errorf("x: %w", catalog.ErrUnauthorized), mink.ErrUnavailable},
		{fmt.Errorf("x: %w", catalog.ErrThrottled), mink.ErrThrottled},
		{fmt.Errorf("x: %w", catalog.ErrInvalid), mink.ErrUnsupported},
		{fmt.Errorf("x: %w", catalog.ErrCorrupt), mink.ErrCorrupt},
		{fmt.Errorf("x: %w (%w)", mink.ErrNotExist, catalog.ErrNotExist), mink.ErrNotExist},
	} {
		away = c.err
		if _, _, err := o.Plan(t.Context(), layout, recorded); !errors.Is(err, c.class) || !errors.Is(err, c.err) {
			t.Errorf("%v: %v, want %v", c.err, err, c.class)
		}
	}
	away = nil
	if got, ends, err := o.Plan(t.Context(), layout, recorded); got != recorded || ends != nil || err != nil {
		t.Fatalf("%q, %v, %v", got, ends, err)
	}
	away = catalog.ErrUnavailable
	if got, ends, err := o.Plan(t.Context(), layout, recorded); got != recorded || ends != nil || err != nil {
		t.Errorf("away, opened before: %q, %v, %v", got, ends, err)
	}
	if _, _, err := o.Plan(t.Context(), layout, strconv.FormatInt(id+1, 10)); !errors.Is(err, mink.ErrUnavailable) {
		t.Errorf("away, another snapshot: %v", err)
	}
	away = catalog.ErrInvalid
	if _, _, err := o.Plan(t.Context(), layout, recorded); !errors.Is(err, mink.ErrUnsupported) {
		t.Errorf("refused: %v", err)
	}
}
