package scan

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema/bucketing"
	"github.com/mink-project/mink/core/schema/partition"
	"github.com/mink-project/mink/sdk/mink"
)

// router finds the bucket of rows in files that do not say which one they are of.
type router struct {
	layout     Layout
	columns    []string // that rows are routed by
	bucketer   *bucketing.Bucketer
	partition  *partition.Reader
	partitions []mink.PartitionID
	byValues   map[string]mink.PartitionID
}

func newRouter(l Layout) (*router, error) {
	r := &router{layout: l, byValues: map[string]mink.PartitionID{}}
	r.columns = slices.Concat(l.Descriptor.PartitionKeys, l.Descriptor.BucketKeys)
	for id, values := range l.Partitions {
		r.partitions = append(r.partitions, id)
		r.byValues[valuesKey(values)] = id
	}
	var err error
	if len(l.Descriptor.BucketKeys) > 0 {
		if r.bucketer, err = bucketing.New(l.Descriptor); err != nil {
			return nil, err
		}
	}
	if len(l.Descriptor.PartitionKeys) > 0 {
		r.partition, err = partition.NewReader(l.Descriptor)
	}
	return r, err
}

func valuesKey(values []string) string { return fmt.Sprintf("%q", values) }

// assign splits files into those that are of a wanted bucket as a whole, and those whose
// rows must be looked at; the others are left out.
func (p *prepared) assign(tasks []table.FileScanTask) (own, foreign []table.FileScanTask, err error) {
	if p.Buckets == nil {
		return tasks, nil, nil
	}
	l := p.snapshot.layout
	for _, t := range tasks {
		ref, ok := l.BucketOf(t.File.FilePath())
		switch {
		case ok && ref.Table != l.Table:
			return nil, nil, fmt.Errorf("file %s is of table %d, this is table %d: %w", t.File.FilePath(), ref.Table, l.Table, mink.ErrCorrupt)
		case ok && p.Buckets(ref):
			own = append(own, t)
		case !ok && p.mayHave(t.File):
			foreign = append(foreign, t)
		}
	}
	return own, foreign, nil
}

// mayHave looks whether a file's rows can be of a wanted bucket: where the table is
// partitioned by the bucket function its partition value is the bucket.
func (p *prepared) mayHave(f iceberg.DataFile) bool {
	index, ok := p.bucketValue(f)
	if !ok {
		return true
	}
	ref := mink.BucketRef{Table: p.snapshot.layout.Table, Index: index}
	for _, id := range append(p.router.partitions, 0) {
		if ref.Partition = id; p.Buckets(ref) {
			return true
		}
	}
	return false
}

func (p *prepared) bucketValue(f iceberg.DataFile) (int32, bool) {
	d := p.snapshot.layout.Descriptor
	spec := p.snapshot.table.Metadata().PartitionSpecByID(int(f.SpecID()))
	if spec == nil || len(d.BucketKeys) != 1 {
		return 0, false
	}
	key, ok := d.Schema.Column(d.BucketKeys[0])
	if !ok {
		return 0, false
	}
	for i := range spec.NumFields() {
		field := spec.Field(i)
		bucket, is := field.Transform.(iceberg.BucketTransform)
		if is && bucket.NumBuckets == int(d.BucketCount) && slices.Equal(field.SourceIDs, []int{int(key.ID)}) {
			v, ok := f.Partition()[field.FieldID].(int32)
			return v, ok
		}
	}
	return 0, false
}

// assigner answers which rows of one file are of wanted buckets. Without a bucket key any
// bucket will do, as long as it is always the same: the file's location decides.
func (p *prepared) assigner(location string) func(arrow.RecordBatch) ([]int32, error) {
	h := fnv.New32a()
	h.Write([]byte(location))
	turn := int32(h.Sum32() % uint32(p.snapshot.layout.Descriptor.BucketCount))
	return func(rec arrow.RecordBatch) ([]int32, error) {
		rows, err := p.router.rows(rec, turn, p.Buckets)
		if err != nil {
			return nil, fmt.Errorf("file %s: %w", location, err)
		}
		return rows, nil
	}
}

func (r *router) rows(rec arrow.RecordBatch, turn int32, wanted func(mink.BucketRef) bool) ([]int32, error) {
	n := int(rec.NumRows())
	refs := make([]mink.BucketRef, n)
	if err := r.setPartitions(rec, refs); err != nil {
		return nil, err
	}
	buckets := make([]int32, n)
	for i := range buckets {
		buckets[i] = turn
	}
	if r.bucketer != nil {
		if err := r.bucketer.Buckets(rec, buckets); err != nil {
			return nil, err
		}
	}
	rows := make([]int32, 0, n)
	known := map[mink.BucketRef]bool{}
	for i := range refs {
		refs[i].Table, refs[i].Index = r.layout.Table, buckets[i]
		yes, ok := known[refs[i]]
		if !ok {
			yes = wanted(refs[i])
			known[refs[i]] = yes
		}
		if yes {
			rows = append(rows, int32(i))
		}
	}
	return rows, nil
}

func (r *router) setPartitions(rec arrow.RecordBatch, refs []mink.BucketRef) error {
	if r.partition == nil {
		for i := range refs {
			refs[i].Partition = r.byValues[valuesKey(nil)]
		}
		return nil
	}
	groups, err := r.partition.Split(rec, len(refs))
	if err != nil {
		return err
	}
	for _, g := range groups {
		id := r.byValues[valuesKey(g.Values)]
		for _, row := range g.Rows {
			refs[row].Partition = id
		}
	}
	return nil
}
