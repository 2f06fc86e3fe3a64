package lake

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/sink"
)

// compact is what a worker does; an empty answer is a round that was given up.
func (o *one) compact(req sink.CompactRequest) sink.Compaction {
	o.t.Helper()
	done, commit := o.prepareCompaction(req)
	if done.Empty() {
		_, err := o.table.Abort(o.t.Context(), sink.AbortRequest{Round: commit.Round, Staged: commit.Staged})
		o.must(err)
		return done
	}
	o.commit(commit)
	return done
}

func (o *one) prepareCompaction(req sink.CompactRequest) (sink.Compaction, sink.CommitRequest) {
	o.t.Helper()
	o.rounds++
	commit := sink.CommitRequest{Round: sink.RoundID(fmt.Sprintf("c-%d", o.rounds)), Base: o.last.Round, Fence: 1}
	_, err := o.table.BeginRound(o.t.Context(), sink.BeginRoundRequest{Round: commit.Round, Base: commit.Base, Fence: commit.Fence})
	o.must(err)
	m, ok := sink.MaintainerOf(o.table)
	if !ok {
		o.t.Fatal("no maintenance")
	}
	plan, err := m.PlanCompaction(o.t.Context(), req)
	o.must(err)
	done, err := m.Compact(o.t.Context(), req)
	o.must(err)
	if plan.DataFiles != done.DataFiles || plan.DeleteFiles != done.DeleteFiles || plan.Bytes != done.Bytes || plan.More != done.More {
		o.t.Fatalf("planned %+v, did %+v", plan, done)
	}
	resp, err := o.table.Prepare(o.t.Context(), sink.PrepareRequest{})
	o.must(err)
	commit.Staged = resp.Staged
	return done, commit
}

func (o *one) expire(req sink.ExpireRequest) sink.ExpireResponse {
	o.t.Helper()
	req.Fence = max(req.Fence, 1)
	m, _ := sink.MaintainerOf(o.table)
	done, err := m.Expire(o.t.Context(), req)
	o.must(err)
	return done
}

// shape counts the current snapshot's data and delete files.
func (o *one) shape() (data, deletes int) {
	o.t.Helper()
	tbl := o.outside()
	for e, err := range liveEntries(o.t.Context(), tbl, tbl.CurrentSnapshot()) {
		o.must(err)
		if e.DataFile().ContentType() == iceberg.EntryContentData {
			data++
		} else {
			deletes++
		}
	}
	return data, deletes
}

// rowsAt are the rows of a snapshot, as rows has them.
func (o *one) rowsAt(snapshot string) []string {
	o.t.Helper()
	id, err := strconv.ParseInt(snapshot, 10, 64)
	o.must(err)
	_, batches, err := o.outside().Scan(table.WithSnapshotID(id)).ToArrowRecords(context.Background())
	o.must(err)
	var out []string
	for batch, err := range batches {
		o.must(err)
		out = append(out, o.jsonRows(batch)...)
		batch.Release()
	}
	slices.Sort(out)
	return out
}

func (o *one) dataFiles() (files []iceberg.DataFile) {
	o.t.Helper()
	tasks, err := o.outside().Scan().PlanFiles(o.t.Context())
	o.must(err)
	for _, task := range tasks {
		files = append(files, task.File)
	}
	return files
}

// partitions are the partition values of the data files.
func (o *one) partitions() (texts []string) {
	o.t.Helper()
	for _, f := range o.dataFiles() {
		texts = append(texts, partitionText(f.Partition()))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// noOrphans: all that is there is named by the metadata.
func (o *one) noOrphans() {
	o.t.Helper()
	lt := o.table.(*lakeTable)
	named, err := lt.namedFiles(o.t.Context(), o.outside(), func() {})
	o.must(err)
	for _, key := range o.keys("") {
		if !named.has(key) {
			o.t.Fatalf("%s is an orphan", key)
		}
	}
}
