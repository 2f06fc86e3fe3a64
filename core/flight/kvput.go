package flight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/bucketing"
	"github.com/mink-project/mink/core/schema/partition"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// putPlan is what a table-addressed put says to the buckets.
type putPlan struct {
	columns []mink.FieldID // targets, in the order of the stored bytes; nil: all
	deletes bool
	layout  *arrowipc.Layout // of the stored bytes
}

func (p *putPlan) request(id mink.SchemaID, part *putPart) kv.Put {
	r := kv.Put{SchemaID: id, Columns: p.columns, Metadata: part.header, Body: part.body, Count: int32(part.rows), WriterID: mink.NoWriter}
	if p.deletes {
		r.Changes = bytes.Repeat([]byte{byte(mink.ChangeDelete)}, int(part.rows))
	}
	return r
}

// putRows plans the rows of a put into a primary-key table. Targets are the columns
// that the command names and the key's; without names those that are sent, of a
// delete the key's. A merge engine that knows whole rows only gets whole rows.
func putRows(t *cluster.Table, o *schema.Options, c *api.Command, as *arrow.Schema) (*rowPlan, error) {
	all := current(t)
	sent, err := placesOf(all, as)
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	if len(c.Columns) > 0 {
		s, err := projection(all, c.Columns)
		if err != nil {
			return nil, fmt.Errorf("columns: %w", err)
		}
		for _, col := range s.Columns {
			named[col.Name] = true
		}
	}
	key := t.Descriptor.PrimaryKey
	r := &rowPlan{schema: &schema.Schema{ID: all.ID}, put: &putPlan{deletes: c.Delete}}
	for _, col := range all.Columns {
		at, isSent := sent[col.Name]
		isKey := slices.Contains(key, col.Name)
		target := isKey || named[col.Name] || len(named) == 0 && !c.Delete && (isSent || wholeRows(o) && !col.AutoIncrement)
		switch {
		case isKey && !isSent:
			return nil, fmt.Errorf("%w: the stream has no column %q, which is in the primary key (%s)", mink.ErrInvalid, col.Name, strings.Join(key, ", "))
		case c.Delete && target && !isKey && col.Type.NotNull:
			return nil, fmt.Errorf("%w: columns: %q is NOT NULL, a delete cannot set it to null", mink.ErrInvalid, col.Name)
		case !c.Delete && target && !isSent && named[col.Name]:
			return nil, fmt.Errorf("%w: column %q is named in columns and absent from the stream", mink.ErrInvalid, col.Name)
		case !c.Delete && col.Type.NotNull && !col.AutoIncrement && (!isSent || !target):
			return nil, fmt.Errorf("%w: column %q is NOT NULL and absent: an upsert may have to insert the row", mink.ErrInvalid, col.Name)
		case !target:
			continue
		case !isSent:
			at = -1
		}
		col.Type.NotNull = isKey || col.Type.NotNull && !c.Delete && !col.AutoIncrement
		r.schema.Columns = append(r.schema.Columns, col)
		r.at = append(r.at, at)
		r.put.columns = append(r.put.columns, col.ID)
	}
	if len(r.schema.Columns) == len(all.Columns) {
		r.put.columns = nil
	}
	r.arrow = r.schema.Arrow()
	r.asSent = len(r.at) == as.NumFields() && inOrder(r.at)
	if r.sent, err = sentLayout(all, r.schema, as); err != nil {
		return nil, err
	}
	r.put.layout, err = arrowipc.NewLayout(r.arrow)
	return r, err
}

// wholeRows reports that the merge engine takes no partial updates.
func wholeRows(o *schema.Options) bool {
	return o.MergeEngine == schema.FirstRow || o.MergeEngine == schema.Versioned
}

// placesOf finds a client's columns in a table by name.
func placesOf(s *schema.Schema, as *arrow.Schema) (map[string]int, error) {
	names := make([]string, as.NumFields())
	for i, f := range as.Fields() {
		names[i] = f.Name
	}
	sent, err := projection(s, names)
	if err != nil || len(names) == 0 {
		return nil, firstOf(err, fmt.Errorf("%w: the stream has no columns", mink.ErrInvalid))
	}
	if err := sent.CheckArrow(as); err != nil {
		return nil, err
	}
	places := make(map[string]int, len(names))
	for i, name := range names {
		places[name] = i
	}
	return places, nil
}

// sentLayout is the layout of a client's columns: nulls are checked where they are
// stored, as the columns of stored say.
func sentLayout(all, stored *schema.Schema, as *arrow.Schema) (*arrowipc.Layout, error) {
	fields := schema.Schema{ID: all.ID}
	for _, f := range as.Fields() {
		c, ok := stored.Column(f.Name)
		if !ok {
			c, _ = all.Column(f.Name)
			c.Type.NotNull = false
		}
		fields.Columns = append(fields.Columns, c)
	}
	return arrowipc.NewLayout(fields.Arrow())
}

// halve splits a part whose changes do not fit into one batch of the changelog.
func (u *putUnit) halve(ctx context.Context, i int) error {
	part := u.parts[i]
	halves, give, err := u.of.halves(ctx, part.header, part.body, part.rows)
	if err != nil {
		return err
	}
	u.holds(give)
	for k := range halves {
		halves[k].bucket = part.bucket
	}
	u.parts = slices.Replace(u.parts, i, i+1, halves...)
	return nil
}

// cutter cuts rows that are stored as a part in two. Call give when the halves are not
// needed any more. Safe for concurrent use.
type cutter func(ctx context.Context, header, body []byte, rows int64) (halves []putPart, give func(), err error)

// halves is a cutter.
func (t *tablePut) halves(ctx context.Context, header, body []byte, n int64) (halves []putPart, give func(), err error) {
	if give, err = t.service.inflate.Take(ctx, header, body); err != nil {
		return nil, nil, err
	}
	if halves, err = t.cut(header, body, n); err != nil {
		give()
	}
	return halves, give, err
}

func (t *tablePut) cut(header, body []byte, n int64) ([]putPart, error) {
	layout := t.rows.put.layout
	if t.rows.asSent {
		layout = t.rows.sent
	}
	rows, err := arrowipc.NewDecoder(arrowipc.DefaultMaxBytes).Decode(layout, header, body, nil)
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	halves := make([]putPart, 2)
	for k, cut := range [][2]int64{{0, n / 2}, {n / 2, n}} {
		half := rows.NewSlice(cut[0], cut[1])
		halves[k].rows = cut[1] - cut[0]
		halves[k].header, halves[k].body, err = arrowipc.Encode(half)
		half.Release()
		if err != nil {
			return nil, err
		}
	}
	return halves, nil
}

// openKV answers a bucket's store. One that is not open is opened, for as long as
// ThrottleWait; opening goes on without the caller.
func (s *service) openKV(ctx context.Context, bucket mink.BucketRef) (KV, error) {
	if t, ok := s.backend.View().Table(bucket.Table); ok {
		if err := wantKey(t); err != nil {
			return nil, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, s.cfg.ThrottleWait)
	defer cancel()
	store, err := s.backend.KV(wait, bucket)
	if err != nil && ctx.Err() == nil && wait.Err() != nil {
		return nil, fmt.Errorf("the store of bucket %s is being opened: %w", bucket, mink.ErrUnavailable)
	}
	return store, err
}

// withKV runs an operation of a bucket's store, once more when the store was closed
// under it because nobody had used it for a while.
func (s *service) withKV(ctx context.Context, bucket mink.BucketRef, f func(KV) error) error {
	for again := true; ; again = false {
		store, err := s.openKV(ctx, bucket)
		if err != nil {
			return err
		}
		if err = f(store); err == nil || !again || !errors.Is(err, mink.ErrClosed) {
			return s.leaderError(bucket, err)
		}
	}
}

func (s *service) putKV(ctx context.Context, bucket mink.BucketRef, put kv.Put) (p Pending, err error) {
	err = s.withKV(ctx, bucket, func(store KV) error {
		p, err = store.Put(ctx, put)
		return err
	})
	return p, err
}

// bucketPut is a native DoPut into a primary-key table.
type bucketPut struct {
	service  *service
	to       api.Put
	table    *cluster.Table
	columns  []mink.FieldID // nil: all of the version
	required string         // a NOT NULL column that the targets lack: nothing can be upserted; "": none
	layout   *arrowipc.Layout
	place    *placement
	checker  *arrowipc.Checker
	decoder  *arrowipc.Decoder
	send     func(*flight.PutResult) error
}

func (s *service) putBucket(ctx context.Context, to *api.Put, header []byte, in <-chan received, send func(*flight.PutResult) error) error {
	b := &bucketPut{
		service: s, to: *to, send: send,
		checker: arrowipc.NewChecker(arrowipc.DefaultMaxBytes), decoder: arrowipc.NewDecoder(arrowipc.DefaultMaxBytes),
	}
	if b.to.WriterID == 0 {
		b.to.WriterID = mink.NoWriter
	}
	if b.to.WriterID < mink.NoWriter || b.to.WriterEpoch < 0 {
		return fmt.Errorf("%w: put: writer_id %d, writer_epoch %d", mink.ErrInvalid, b.to.WriterID, b.to.WriterEpoch)
	}
	if _, err := s.openKV(ctx, to.Bucket); err != nil { // before View: it knows the schema versions that the store has
		return err
	}
	view := s.backend.View()
	t, ok := view.Table(to.Bucket.Table)
	if !ok {
		return fmt.Errorf("table %d %w", to.Bucket.Table, mink.ErrNotExist)
	}
	as, err := wire.ReadSchema(header)
	if err != nil {
		return err
	}
	if err := b.plan(view, t, as); err != nil {
		return fmt.Errorf("put into table %s: %w", t.Descriptor.Name(), err)
	}
	pump := &pump{service: s, in: in, prepare: b.prepare}
	return pump.run(ctx)
}

// plan checks the stream's columns.
func (b *bucketPut) plan(view *cluster.State, t *cluster.Table, as *arrow.Schema) error {
	version, err := versionOf(t, b.to.SchemaID)
	if err != nil {
		return err
	}
	targets, err := projection(version, b.to.Columns)
	if err != nil {
		return fmt.Errorf("columns: %w", err)
	}
	if err := targets.CheckArrow(as); err != nil {
		return err
	}
	layout := &schema.Schema{ID: version.ID}
	for _, c := range targets.Columns {
		c.Type.NotNull = slices.Contains(t.Descriptor.PrimaryKey, c.Name)
		layout.Columns = append(layout.Columns, c)
		if len(b.to.Columns) > 0 {
			b.columns = append(b.columns, c.ID)
		}
	}
	for _, c := range version.Columns {
		if _, ok := targets.Column(c.Name); ok {
			continue
		}
		if slices.Contains(t.Descriptor.PrimaryKey, c.Name) {
			return fmt.Errorf("%w: columns: %q is in the primary key (%s) and not among them", mink.ErrInvalid, c.Name, strings.Join(t.Descriptor.PrimaryKey, ", "))
		}
		if c.Type.NotNull && !c.AutoIncrement && b.required == "" {
			b.required = c.Name
		}
	}
	if b.layout, err = arrowipc.NewLayout(layout.Arrow()); err != nil {
		return err
	}
	b.table = t
	b.place, err = newPlacement(view, t, layout, b.to.Bucket)
	return err
}

// prepare makes a put of a message, whose keys it looks at only.
func (b *bucketPut) prepare(ctx context.Context, m *flight.FlightData) (unit, error) {
	rows, err := b.service.batchRows(m, b.to.Bucket)
	if err != nil {
		return nil, fmt.Errorf("put: %w", err)
	}
	u := &kvUnit{of: b, bytes: len(m.DataHeader) + len(m.DataBody), req: kv.Put{
		SchemaID: b.to.SchemaID, Columns: b.columns, Count: int32(rows), WriterID: b.to.WriterID, WriterEpoch: b.to.WriterEpoch,
	}}
	if err := b.metadata(m.AppMetadata, &u.req); err != nil {
		return nil, fmt.Errorf("put: %w", err)
	}
	if rows == 0 {
		return u, nil
	}
	u.req.Metadata, u.req.Body = m.DataHeader, m.DataBody
	if err := b.check(ctx, m); err != nil {
		return nil, fmt.Errorf("put into table %s: %w", b.table.Descriptor.Name(), err)
	}
	return u, nil
}

func (b *bucketPut) metadata(body []byte, req *kv.Put) error {
	if len(body) == 0 && b.to.WriterID != mink.NoWriter {
		return fmt.Errorf(`%w: a batch of writer %d without app_metadata {"sequence":...}`, mink.ErrInvalid, b.to.WriterID)
	}
	var md api.PutMetadata
	if len(body) > 0 {
		if err := wire.Decode("app_metadata", body, &md); err != nil {
			return err
		}
	}
	switch {
	case md.Sequence < 0:
		return fmt.Errorf("%w: app_metadata: sequence is %d, the first is 0", mink.ErrInvalid, md.Sequence)
	case md.Delete && md.Changes != nil:
		return fmt.Errorf("%w: app_metadata: delete and changes both say what the rows are", mink.ErrInvalid)
	case md.Changes != nil && len(md.Changes) != int(req.Count):
		return fmt.Errorf("%w: app_metadata: changes has %d bytes for %d rows", mink.ErrInvalid, len(md.Changes), req.Count)
	}
	req.Sequence, req.Changes = md.Sequence, md.Changes
	if md.Delete {
		req.Changes = bytes.Repeat([]byte{byte(mink.ChangeDelete)}, int(req.Count))
	}
	for i, c := range req.Changes {
		switch mink.Change(c) {
		case mink.ChangeDelete:
			continue
		case mink.ChangeAppend, mink.ChangeInsert, mink.ChangeUpdateAfter:
		default:
			return fmt.Errorf("%w: app_metadata: changes of row %d is %d, want 4 for a delete, 3 for an upsert", mink.ErrInvalid, i, c)
		}
		if b.required != "" {
			return fmt.Errorf("%w: row %d is an upsert, which may have to insert the row, and the stream has no column %q, which is NOT NULL", mink.ErrInvalid, i, b.required)
		}
	}
	if req.Changes == nil && req.Count > 0 && b.required != "" {
		return fmt.Errorf("%w: the stream has no column %q, which is NOT NULL: an upsert may have to insert the row", mink.ErrInvalid, b.required)
	}
	return nil
}

// check refuses rows that belong to other buckets: a key that lies in two would have
// two rows.
func (b *bucketPut) check(ctx context.Context, m *flight.FlightData) error {
	give, err := b.service.inflate.Take(ctx, m.DataHeader, m.DataBody)
	if err != nil {
		return err
	}
	defer give()
	if _, err := b.checker.Check(b.layout, m.DataHeader, m.DataBody); err != nil {
		return err
	}
	keys, err := b.decoder.Decode(b.layout, m.DataHeader, m.DataBody, b.place.columns)
	if err != nil {
		return err
	}
	defer keys.Release()
	return b.place.check(keys)
}

type kvUnit struct {
	of    *bucketPut
	req   kv.Put
	bytes int
	p     Pending
}

func (u *kvUnit) append(ctx context.Context, last bool) error {
	p, err := u.of.service.putKV(ctx, u.of.to.Bucket, u.req)
	if err != nil {
		if !last && errors.Is(err, mink.ErrThrottled) {
			return errLater
		}
		return err
	}
	u.of.service.metrics.RecordBytes(u.bytes, 0)
	u.p, u.req.Metadata, u.req.Body, u.req.Changes = p, nil, nil, nil
	return nil
}

func (u *kvUnit) drop() {}

func (u *kvUnit) pending() <-chan struct{} { return unlessDone(u.p) }

func (u *kvUnit) answer() error {
	return acknowledge(u.p, u.req.WriterID != mink.NoWriter, u.of.send)
}

// placement checks that rows belong to one bucket.
type placement struct {
	bucket    mink.BucketRef
	columns   []int // places of the primary key's columns in a batch
	bucketer  *bucketing.Bucketer
	partition *partition.Reader // nil: no partition keys
	values    []string
	buckets   []int32
}

func newPlacement(view *cluster.State, t *cluster.Table, s *schema.Schema, bucket mink.BucketRef) (*placement, error) {
	part, ok := view.Partition(bucket.Partition)
	if !ok {
		return nil, fmt.Errorf("bucket %s: partition %d %w", bucket, bucket.Partition, mink.ErrNotExist)
	}
	p := &placement{bucket: bucket, values: part.Values}
	for _, name := range t.Descriptor.PrimaryKey {
		p.columns = append(p.columns, s.Index(name))
	}
	var err error
	if p.bucketer, err = bucketing.New(t.Descriptor); err != nil {
		return nil, err
	}
	if len(t.Descriptor.PartitionKeys) > 0 {
		p.partition, err = partition.NewReader(t.Descriptor)
	}
	return p, err
}

func (p *placement) check(keys arrow.RecordBatch) error {
	p.buckets = slices.Grow(p.buckets[:0], int(keys.NumRows()))[:keys.NumRows()]
	if err := p.bucketer.Buckets(keys, p.buckets); err != nil {
		return err
	}
	for row, b := range p.buckets {
		if b != p.bucket.Index {
			return fmt.Errorf("%w: row %d belongs to bucket %d by its bucket keys, and was sent to bucket %d", mink.ErrInvalid, row, b, p.bucket.Index)
		}
	}
	if p.partition == nil {
		return nil
	}
	groups, err := p.partition.Split(keys, int(keys.NumRows()))
	if err != nil {
		return err
	}
	for _, g := range groups {
		if !slices.Equal(g.Values, p.values) {
			return fmt.Errorf("%w: row %d belongs to partition %q, and was sent to partition %q", mink.ErrInvalid, g.Rows[0], g.Values, p.values)
		}
	}
	return nil
}
