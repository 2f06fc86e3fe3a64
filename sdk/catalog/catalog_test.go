package catalog_test

import (
	"context"
	"errors"
	"strings"
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

func TestNamesThatACatalogCannotTake(t *testing.T) {
	long := strings.Repeat("a", 255)
	for _, c := range []struct {
		namespace, name string
		any, plain      bool // what takes them
	}{
		{"shop", "orders_2", true, true},
		{long, long, true, true},
		{long + "a", "t", true, false},
		{"shop", long + "a", true, false},
		{"Shop", "orders", true, false},
		{"shop", "Orders", true, false},
		{"shop", "web-logs", true, false},
		{"shop.eu", "orders", true, false},
		{"shop", "\u00e4", true, false},
		{"shop", "", false, false},
		{"", "orders", false, false},
	} {
		id := catalog.Identifier{Namespace: []string{c.namespace}, Name: c.name}
		for plain, takes := range map[bool]bool{false: c.any, true: c.plain} {
			err := catalog.Description{Name: "x", PlainNames: plain}.CheckTable(id)
			if (err == nil) != takes || err != nil && !errors.Is(err, catalog.ErrInvalid) {
				t.Errorf("%.20q, plain names %v: %v", id, plain, err)
			}
		}
	}
	if err := (catalog.Description{PlainNames: true}).CheckTable(catalog.Identifier{Namespace: []string{"a", "b"}, Name: "t"}); !errors.Is(err, catalog.ErrInvalid) {
		t.Errorf("two levels: %v", err)
	}
}
