package catalogtest

import (
	"context"

	"github.com/mink-project/mink/sdk/catalog"
)

// FaultyCommitter is Faulty for catalogs that compute metadata.
type FaultyCommitter struct{ *Faulty }

// CommitTable implements catalog.Committer.
func (f FaultyCommitter) CommitTable(ctx context.Context, req catalog.CommitTableRequest) (resp catalog.LoadTableResponse, err error) {
	if err := f.before("CommitTable"); err != nil {
		return resp, err
	}
	resp, err = f.Catalog.(catalog.Committer).CommitTable(ctx, req)
	return resp, f.after("CommitTable", err)
}

// Faulty is a Swapper whose changes fail as a test wants. Its hooks are called with the
// name of the call ("SwapMetadata", "CreateTable", "DropTable", "LoadTable"); nil hooks do nothing.
type Faulty struct {
	catalog.Catalog
	// Before fails the call without an effect.
	Before func(call string) error
	// After loses the answer of a call that succeeded: its error is answered instead.
	After func(call string) error
}

func (f *Faulty) before(call string) error {
	if f.Before == nil {
		return nil
	}
	return f.Before(call)
}

func (f *Faulty) after(call string, err error) error {
	if err != nil || f.After == nil {
		return err
	}
	return f.After(call)
}

// SwapMetadata implements catalog.Swapper.
func (f *Faulty) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (resp catalog.SwapMetadataResponse, err error) {
	if err := f.before("SwapMetadata"); err != nil {
		return resp, err
	}
	resp, err = f.Catalog.(catalog.Swapper).SwapMetadata(ctx, req)
	return resp, f.after("SwapMetadata", err)
}

// CreateTable implements catalog.Catalog.
func (f *Faulty) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (resp catalog.LoadTableResponse, err error) {
	if err := f.before("CreateTable"); err != nil {
		return resp, err
	}
	resp, err = f.Catalog.CreateTable(ctx, req)
	return resp, f.after("CreateTable", err)
}

// DropTable implements catalog.Catalog.
func (f *Faulty) DropTable(ctx context.Context, req catalog.DropTableRequest) (resp catalog.DropTableResponse, err error) {
	if err := f.before("DropTable"); err != nil {
		return resp, err
	}
	resp, err = f.Catalog.DropTable(ctx, req)
	return resp, f.after("DropTable", err)
}

// LoadTable implements catalog.Catalog.
func (f *Faulty) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (resp catalog.LoadTableResponse, err error) {
	if err := f.before("LoadTable"); err != nil {
		return resp, err
	}
	resp, err = f.Catalog.LoadTable(ctx, req)
	return resp, f.after("LoadTable", err)
}
