package catalog_test

import (
	"context"
	"errors"
	"testing"

	"github.com/mink-project/mink/sdk/catalog"
)

type bare struct {
	catalog.Catalog
	commit catalog.Commit
}

func (b bare) Describe() catalog.Description { return catalog.Description{Name: "x", Commit: b.commit} }

type swapper struct{ bare }

func (swapper) SwapMetadata(context.Context, catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	return catalog.SwapMetadataResponse{}, nil
}

func TestACatalogHasTheCompanionThatItDeclares(t *testing.T) {
	for _, c := range []struct {
		catalog catalog.Catalog
		ok      bool
	}{
		{bare{}, false},
		{bare{commit: 9}, false},
		{bare{commit: catalog.CommitsUpdates}, false},
		{bare{commit: catalog.SwapsMetadata}, false},
		{swapper{bare{commit: catalog.CommitsUpdates}}, false},
		{swapper{bare{commit: catalog.SwapsMetadata}}, true},
	} {
		if err := catalog.Check(c.catalog); (err == nil) != c.ok || err != nil && !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("%+v: %v", c.catalog, err)
		}
	}
}
