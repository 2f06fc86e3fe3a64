package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Probe does what a log needs of a store, once, and cleans up: a create-only Put,
// a second one that must be refused, a Get, a List, a Delete. A node registers
// only after it succeeded, so that a node whose data path is dead does not take
// buckets. Nonce is random. Errors: mink.ErrUnsupported when the store does not
// keep create-only, otherwise mink.ErrUnavailable.
func Probe(ctx context.Context, store objstore.Store, node mink.NodeID, nonce uint64) error {
	if err := needCreateOnly(store); err != nil {
		return err
	}
	prefix := fmt.Sprintf("probe/%d/", node)
	key := fmt.Sprintf("%s%016x", prefix, nonce)
	if err := probe(ctx, store, prefix, key); err != nil {
		// Best effort: the object holds nothing and has a name of its own.
		_, _ = store.DeleteBatch(context.WithoutCancel(ctx), []string{key})
		if errors.Is(err, mink.ErrUnsupported) {
			return err
		}
		return fmt.Errorf("probe of the object store: %w: %w", mink.ErrUnavailable, err)
	}
	return nil
}

func probe(ctx context.Context, store objstore.Store, prefix, key string) error {
	data := []byte("mink probe " + key)
	req := objstore.PutRequest{Key: key, Chunks: [][]byte{data}, CreateOnly: true, CRC32C: objstore.Checksum(data), HasCRC32C: true}
	if _, err := store.Put(ctx, req); err != nil {
		return err
	}
	switch _, err := store.Put(ctx, req); {
	case err == nil:
		return fmt.Errorf("%w: the object store overwrote %s in a create-only put: logs cannot be fenced on it", mink.ErrUnsupported, key)
	case !errors.Is(err, objstore.ErrAlreadyExists):
		return err
	}
	got, err := store.GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
	if err != nil {
		return err
	}
	if !bytes.Equal(got.Data, data) {
		return fmt.Errorf("%s reads back as %d other bytes", key, len(got.Data))
	}
	listed, err := store.List(ctx, objstore.ListRequest{Prefix: key, Limit: 1})
	if err != nil {
		return err
	}
	at := slices.IndexFunc(listed.Objects, func(o objstore.ObjectInfo) bool { return o.Key == key })
	if at < 0 {
		return fmt.Errorf("%s is not in the listing of %s", key, prefix)
	}
	stale, err := staleProbes(ctx, store, prefix, listed.Objects[at].Modified.Add(-staleAfter))
	if err != nil {
		return err
	}
	gone, err := store.DeleteBatch(ctx, append(stale, key))
	if err != nil {
		return err
	}
	return errors.Join(gone.Errors...)
}

// staleAfter is the age, by the store's clock, at which a probe of an earlier
// process that died on the way is garbage.
const staleAfter = time.Hour

func staleProbes(ctx context.Context, store objstore.Store, prefix string, before time.Time) ([]string, error) {
	page, err := store.List(ctx, objstore.ListRequest{Prefix: prefix, Limit: objstore.DeleteMax - 1})
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, o := range page.Objects {
		if o.Modified.Before(before) {
			keys = append(keys, o.Key)
		}
	}
	return keys, nil
}
