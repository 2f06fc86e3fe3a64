package lake

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// Standing is what the lake has of a table of Mink's.
type Standing struct {
	sink.Committed
	Schema mink.SchemaID // Mink's version of the columns
}

// Standing looks at the lake table of a table; false: there is none, or the one of the name
// is another's. An error that wraps sink.ErrCorrupt is the table's: its history does not say
// how far it goes.
func (w *Warehouse) Standing(ctx context.Context, database, name string, id mink.TableID) (Standing, bool, error) {
	tbl, err := w.Load(ctx, catalog.Identifier{Namespace: []string{database}, Name: name})
	switch {
	case errors.Is(err, mink.ErrNotExist):
		return Standing{}, false, nil
	case err != nil:
		return Standing{}, false, err
	}
	props := tbl.Properties()
	if props[keyTableID] != strconv.FormatInt(int64(id), 10) {
		return Standing{}, false, nil
	}
	s := Standing{}
	have, err := strconv.ParseInt(props[keySchemaID], 10, 32)
	if err != nil {
		return s, true, fmt.Errorf("lake table %s.%s: %w: property %s is %q, want the version of Mink's schema", database, name, sink.ErrCorrupt, keySchemaID, props[keySchemaID])
	}
	s.Schema = mink.SchemaID(have)
	s.Committed, err = currentOffsets(ctx, tbl)
	return s, true, err
}
