package scan_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/bucketing"
	"github.com/mink-project/mink/sdk/mink"
)

func descriptorOf(t *testing.T, s *schema.Schema, partitionKeys, bucketKeys []string, buckets int32) *schema.Descriptor {
	t.Helper()
	d := &schema.Descriptor{Database: "db", Table: "t", Schema: *s, PartitionKeys: partitionKeys, BucketKeys: bucketKeys, BucketCount: buckets}
	n, err := d.Normalize()
	if err == nil {
		err = n.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Every row is of exactly one bucket: that of its file's name where Mink wrote it, else
// the one that the table's functions say; rows of partitions that are gone are of
// partition 0.
func TestBuckets(t *testing.T) {
	dir := tempDir(t)
	s := schemaOf("day INT NOT NULL", "k BIGINT NOT NULL", "v STRING")
	specs := map[string][]iceberg.PartitionField{
		"unpartitioned": nil,
		"as Mink's": {
			{SourceIDs: []int{1}, FieldID: 1000, Name: "day", Transform: iceberg.IdentityTransform{}},
			{SourceIDs: []int{2}, FieldID: 1001, Name: "k_bucket", Transform: iceberg.BucketTransform{NumBuckets: 4}},
		},
		"another": {{SourceIDs: []int{2}, FieldID: 1000, Name: "k_bucket", Transform: iceberg.BucketTransform{NumBuckets: 3}}},
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			d := descriptorOf(t, s, []string{"day"}, []string{"k"}, 4)
			l := newLake(t, dir(), 2, lakeFields(s), spec...)
			partitions := map[mink.PartitionID][]string{3: {"1"}, 4: {"-2"}}
			var rows []mergetest.Row
			for i := range 60 {
				rows = append(rows, mergetest.Row{[]int32{1, -2, 99}[i%3], int64(i), fmt.Sprint(i)})
			}
			l.append(s, rows[:40])
			at := l.append(s, rows[40:])
			bucketer, err := bucketing.New(d)
			if err != nil {
				t.Fatal(err)
			}
			snap := openAt(t, l, at, layoutOf(d, partitions, nil))
			for _, p := range []mink.PartitionID{0, 3, 4} {
				for b := range int32(4) {
					var want []mergetest.Row
					for _, r := range rows {
						of := map[int32]mink.PartitionID{1: 3, -2: 4}[r[0].(int32)]
						if i, err := bucketer.Bucket(r[1]); err == nil && of == p && i == b {
							want = append(want, mergetest.Row{r[2]})
						}
					}
					if len(want) == 0 {
						t.Fatalf("bucket %d of partition %d has no rows: the test shows nothing", b, p)
					}
					got, err := collect(snap.Read(t.Context(), scan.Read{
						Target: s, Columns: []mink.FieldID{3}, Buckets: func(r mink.BucketRef) bool { return r == mink.BucketRef{Table: 7, Partition: p, Index: b} },
					}))
					if err != nil || !slices.Equal(sorted(got), sorted(want)) {
						t.Errorf("bucket %d of partition %d: %v, %v, want %v", b, p, got, err, want)
					}
				}
			}
		})
	}
	t.Run("own files", func(t *testing.T) {
		d := descriptorOf(t, s, []string{"day"}, []string{"k"}, 4)
		l := newLake(t, dir(), 2, lakeFields(s))
		at := l.append(s, []mergetest.Row{{int32(1), int64(1), "own"}})
		own := map[string]mink.BucketRef{}
		tasks, err := l.table.Scan().PlanFiles(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ref := mink.BucketRef{Table: 7, Partition: 12, Index: 3} // whatever the functions say
		own[tasks[0].File.FilePath()] = ref
		snap := openAt(t, l, at, layoutOf(d, map[mink.PartitionID][]string{3: {"1"}}, own))
		for _, want := range []bool{true, false} {
			got, err := collect(snap.Read(t.Context(), scan.Read{Target: s, Buckets: func(r mink.BucketRef) bool { return (r == ref) == want }}))
			if err != nil || (len(got) == 1) != want {
				t.Errorf("the file's bucket %v: %v, %v", want, got, err)
			}
		}
		ref.Table = 8
		own[tasks[0].File.FilePath()] = ref
		if _, err := collect(snap.Read(t.Context(), scan.Read{Target: s, Buckets: func(mink.BucketRef) bool { return true }})); !errors.Is(err, mink.ErrCorrupt) {
			t.Errorf("a file of another table: %v", err)
		}
	})
	t.Run("buckets by turns", func(t *testing.T) {
		plain := schemaOf("v INT")
		d := descriptorOf(t, plain, nil, nil, 3)
		l := newLake(t, dir(), 2, lakeFields(plain))
		var at int64
		for i := range 6 {
			at = l.append(plain, []mergetest.Row{{int32(i)}})
		}
		snap := openAt(t, l, at, layoutOf(d, map[mink.PartitionID][]string{2: nil}, nil))
		var all []mergetest.Row
		for b := range int32(3) {
			got, err := collect(snap.Read(t.Context(), scan.Read{Target: plain, Buckets: func(r mink.BucketRef) bool { return r.Partition == 2 && r.Index == b }}))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, got...)
		}
		if len(sorted(all)) != 6 || len(slices.Compact(sorted(all))) != 6 {
			t.Errorf("rows over all buckets: %v", all)
		}
	})
}

// A reader that stops, a context that ends, and a failure half way: what a read started
// ends with it (TestMain looks), and what it says is what happened.
func TestEnds(t *testing.T) {
	s := schemaOf("k INT NOT NULL")
	l := newLake(t, t.TempDir(), 2, lakeFields(s))
	var rows []mergetest.Row
	for i := range 1000 {
		rows = append(rows, mergetest.Row{int32(i)})
	}
	var at int64
	for range 5 {
		at = l.append(s, rows)
	}
	snap := openAt(t, l, at, layoutOf(nil, nil, nil))
	for _, files := range []int{1, 4} {
		read := scan.Read{Target: s, BatchRows: 10, Files: files}
		n := 0
		for _, err := range snap.Read(t.Context(), read) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 3 {
				break
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var last error
		for _, err := range snap.Read(ctx, read) {
			last = err
			cancel()
		}
		if !errors.Is(last, context.Canceled) {
			t.Errorf("after the context was done: %v", last)
		}
	}
	if _, err := scan.Open(l.table, 12345, layoutOf(nil, nil, nil)); !errors.Is(err, mink.ErrNotExist) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a snapshot that is not there: %v", err)
	}
}

// A snapshot stays what it was while the table moves on.
func TestPinned(t *testing.T) {
	s := schemaOf("k INT NOT NULL", "v STRING")
	l := newLake(t, t.TempDir(), 3, lakeFields(s))
	at := l.append(s, []mergetest.Row{{int32(1), "a"}, {int32(2), "b"}})
	snap := openAt(t, l, at, layoutOf(nil, nil, nil))
	l.equalityDelete(s, []int{1}, []mergetest.Row{{int32(1), nil}})
	l.do(func(_ context.Context, tx *table.Transaction) error {
		return tx.UpdateSchema(true, false).RenameColumn([]string{"v"}, "w").Commit()
	})
	l.append(schemaOf("k INT NOT NULL", "w STRING"), []mergetest.Row{{int32(3), "c"}})
	for range 2 { // as often as it is read
		got, err := collect(snap.Read(t.Context(), scan.Read{Target: schemaOf("k INT NOT NULL", "w STRING")}))
		if err != nil || len(got) != 2 {
			t.Errorf("%v, %v", got, err)
		}
	}
}
