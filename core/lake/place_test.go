package lake

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/catalog"
)

// managing is a catalog of one table that computes metadata, and keeps the table where it
// wants to.
type managing struct {
	catalog.Catalog
	place string // "": where it is asked to
	meta  json.RawMessage
}

func (c *managing) Describe() catalog.Description {
	return catalog.Description{Name: "managing", Commit: catalog.CommitsUpdates}
}

func (c *managing) LoadTable(context.Context, catalog.LoadTableRequest) (catalog.LoadTableResponse, error) {
	if c.meta == nil {
		return catalog.LoadTableResponse{}, catalog.ErrNotExist
	}
	return catalog.LoadTableResponse{Metadata: c.meta}, nil
}

func (c *managing) CommitTable(_ context.Context, req catalog.CommitTableRequest) (catalog.LoadTableResponse, error) {
	var updates table.Updates
	if err := json.Unmarshal(req.Updates, &updates); err != nil {
		return catalog.LoadTableResponse{}, err
	}
	if c.place != "" {
		updates = append(updates, table.NewSetLocationUpdate(c.place))
	}
	meta, err := applyToNothing(updates, func() string { return "" })
	if err == nil {
		c.meta, err = json.Marshal(meta)
	}
	return catalog.LoadTableResponse{Metadata: c.meta}, err
}

// A table that its catalog keeps elsewhere is not written to: the error says where it is, and
// that it was made is not denied.
func TestTableAtAPlaceOfTheCatalogsChoice(t *testing.T) {
	id := catalog.Identifier{Namespace: []string{"db"}, Name: "t"}
	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64})
	for place, fine := range map[string]bool{"": true, "s3a://mine/w/lake/db/t-1": true, "s3://managed/t": false, "s3://mine/w/t": false} {
		c := &managing{place: place}
		w, err := NewWarehouse(WarehouseConfig{Store: memstore.New(memstore.Default()), Root: "s3://mine/w", Catalog: c})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Create(t.Context(), CreateTable{ID: id, Schema: schema, Spec: *iceberg.UnpartitionedSpec, SortOrder: table.UnsortedSortOrder})
		_, loaded := w.Load(t.Context(), id)
		switch {
		case fine && (err != nil || loaded != nil):
			t.Errorf("%q: %v, %v", place, err, loaded)
		case !fine && (!errors.Is(err, catalog.ErrUnknownOutcome) || !strings.Contains(err.Error(), place)):
			t.Errorf("%q: made: %v", place, err)
		case !fine && (!errors.Is(loaded, catalog.ErrInvalid) || errors.Is(loaded, catalog.ErrUnknownOutcome) || !strings.Contains(loaded.Error(), "vends")):
			t.Errorf("%q: loaded: %v", place, loaded)
		}
	}
}
