package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cenkalti/backoff/v5"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/nearest"
)

// tableView is what a writer or a reader knows of one table: its definition,
// which a writer keeps, and where its buckets are, which it refreshes.
type tableView struct {
	c      *Client
	name   string
	id     mink.TableID
	desc   *schema.Descriptor
	arrow  *arrow.Schema
	router *routing.Router
	limit  int64 // bytes of one batch

	refreshing chan struct{} // holds one token during a shared refresh
	mu         struct {
		sync.Mutex
		partitions       map[string]api.Partition // by joined values
		begun, succeeded uint64                   // numbers of shared refreshes
	}
}

// joined is one text per list of values: each goes behind its length, because
// a value may hold any character.
func joined(values []string) string {
	var b strings.Builder
	for _, v := range values {
		b.WriteString(strconv.Itoa(len(v)) + ":" + v)
	}
	return b.String()
}

// batchBytesMax is the most that is put into one batch, whatever a table takes.
const batchBytesMax = 8 << 20

// batchBytes leaves a quarter of what the table and a message take for headers
// and for the padding of joined rows.
func batchBytes(table, message int) int64 {
	n := int64(min(batchBytesMax, message))
	if table > 0 {
		n = min(n, int64(table))
	}
	return n / 4 * 3
}

func (c *Client) openTable(ctx context.Context, name string) (*tableView, error) {
	t, err := c.DescribeTable(ctx, name)
	if err != nil {
		return nil, err
	}
	d, err := schema.DecodeDescriptor(t.Descriptor)
	if err != nil {
		return nil, fmt.Errorf("table %s: this client cannot read its descriptor: %w", name, err)
	}
	r, err := routing.New(d)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", name, err)
	}
	o, err := d.ParsedOptions()
	if err != nil {
		return nil, fmt.Errorf("table %s: this client cannot read its options: %w", name, err)
	}
	v := &tableView{c: c, name: name, id: t.ID, desc: d, arrow: d.Schema.Arrow(), router: r, limit: batchBytes(o.MaxMessageBytes, c.cfg.MessageBytesMax),
		refreshing: make(chan struct{}, 1)}
	return v, v.refresh(ctx)
}

// checkColumns refuses a projection to columns that the table lacks.
func (v *tableView) checkColumns(columns []string) error {
	var known []string
	for _, c := range v.desc.Schema.Columns {
		known = append(known, c.Name)
	}
	for _, name := range columns {
		if slices.Contains(known, name) {
			continue
		}
		if near, ok := nearest.Close(name, known); ok {
			return fmt.Errorf("%w column: table %s has no %q; did you mean %q?", mink.ErrInvalid, v.name, name, near)
		}
		return fmt.Errorf("%w column: table %s has no %.200q; it has %s", mink.ErrInvalid, v.name, name, strings.Join(known[:min(len(known), 20)], ", "))
	}
	return nil
}

// refresh reads partitions and leaders anew.
func (v *tableView) refresh(ctx context.Context) error {
	list, err := v.c.ListPartitions(ctx, v.name)
	if err != nil {
		return err
	}
	m := make(map[string]api.Partition, len(list))
	for _, p := range list {
		if len(p.Buckets) > 0 && p.Buckets[0].Bucket.Table != v.id {
			return fmt.Errorf("table %s was dropped and created again: %w", v.name, mink.ErrNotExist)
		}
		m[joined(p.Values)] = p
	}
	v.mu.Lock()
	v.mu.partitions = m
	v.mu.Unlock()
	return nil
}

// lookAgain is what comes between a failure that passes and the next try: a pause, and
// the leaders of now. An error is one that stays.
func (v *tableView) lookAgain(ctx context.Context, pauses *backoff.ExponentialBackOff) error {
	timer := time.NewTimer(pauses.NextBackOff())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-timer.C:
	}
	if err := v.refresh(ctx); err != nil && !retriable(err) && ctx.Err() == nil {
		return err
	}
	return nil
}

// partition answers the partition with the values and creates it when it is
// missing: the first write.
func (v *tableView) partition(ctx context.Context, values []string) (api.Partition, error) {
	v.mu.Lock()
	p, ok := v.mu.partitions[joined(values)]
	v.mu.Unlock()
	if ok {
		return p, nil
	}
	p, err := v.c.CreatePartition(ctx, v.name, values, true)
	if err != nil {
		return api.Partition{}, err
	}
	v.mu.Lock()
	v.mu.partitions[joined(values)] = p
	v.mu.Unlock()
	return p, nil
}

// existing answers the partition with the values; ok is false when there is none as of
// this call. It makes none.
func (v *tableView) existing(ctx context.Context, values []string) (p api.Partition, ok bool, err error) {
	v.mu.Lock()
	p, ok = v.mu.partitions[joined(values)]
	v.mu.Unlock()
	if ok {
		return p, true, nil
	}
	if err := v.refreshShared(ctx); err != nil {
		return api.Partition{}, false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	p, ok = v.mu.partitions[joined(values)]
	return p, ok, nil
}

// refreshShared refreshes once for all who ask before it begins.
func (v *tableView) refreshShared(ctx context.Context) error {
	v.mu.Lock()
	asked := v.mu.begun
	v.mu.Unlock()
	select {
	case v.refreshing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-v.refreshing }()
	v.mu.Lock()
	if v.mu.succeeded > asked {
		v.mu.Unlock()
		return nil
	}
	v.mu.begun++
	mine := v.mu.begun
	v.mu.Unlock()
	err := v.refresh(ctx)
	if err == nil {
		v.mu.Lock()
		v.mu.succeeded = mine
		v.mu.Unlock()
	}
	return err
}

// has reports whether the partition was there at the last refresh.
func (v *tableView) has(id mink.PartitionID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.mu.partitions {
		if p.ID == id {
			return true
		}
	}
	return false
}

// forget lets go of a partition that is no more, so that the next row of its
// values finds the one that took its place, or makes it.
func (v *tableView) forget(id mink.PartitionID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.mu.partitions, func(_ string, p api.Partition) bool { return p.ID == id })
}

// bucket is a bucket with the leader that was known last, whose Address is "" when
// none is.
func (v *tableView) bucket(ref mink.BucketRef) api.Bucket {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.mu.partitions {
		if p.ID == ref.Partition && int(ref.Index) < len(p.Buckets) {
			return p.Buckets[ref.Index]
		}
	}
	return api.Bucket{Bucket: ref}
}

// buckets lists the table's buckets in the order of partition values, then
// index; values restricts to one partition, nil means all.
func (v *tableView) buckets(values []string) ([]api.Bucket, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var parts []api.Partition
	for _, p := range v.mu.partitions {
		if values == nil || slices.Equal(values, p.Values) {
			parts = append(parts, p)
		}
	}
	if values != nil && len(parts) == 0 {
		return nil, fmt.Errorf("partition %s of table %s %w", strings.Join(values, "/"), v.name, mink.ErrNotExist)
	}
	slices.SortFunc(parts, func(a, b api.Partition) int { return slices.Compare(a.Values, b.Values) })
	var out []api.Bucket
	for _, p := range parts {
		out = append(out, p.Buckets...)
	}
	return out, nil
}
