package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// settle ends the load and checks that everything that was acknowledged is there once,
// in order, that nothing else is there, and that store and metadata agree; then the
// cluster stops in order and nothing of it is left. It answers how many rows there were.
func (l *load) settle() (rows int) {
	l.t.Helper()
	l.finish()
	rows = l.verify("in the end")
	l.c.stop()
	l.c.nothingLeft()
	return rows
}

// verify compares what is there with what was promised, while nothing is written.
func (l *load) verify(what string) (rows int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Minute)
	defer cancel()
	rows += l.verifyTopic(ctx, what)
	rows += l.verifyClean(ctx, what)
	rows += l.verifyRows(ctx, what)
	rows += l.verifyStock(ctx, what)
	l.verifyGroup(ctx, what)
	l.verifyLake(what)
	l.fsck(what)
	return rows
}

// fsck: the deep check finds nothing. What an ended epoch left behind may wait for the
// next sweep; any other problem is one at once.
func (l *load) fsck(what string) {
	l.t.Helper()
	flight, _ := l.c.bootstrap()
	eventually(l.t, what+": the orphans that fsck found are swept", func() bool {
		out, errOut, err := try(l.t, nil, minkBinary(l.t), "--bootstrap", strings.Join(flight, ","), "--json", "fsck", "--deep")
		var report api.CheckReport
		if e := decodeJSON(out, &report); e != nil {
			l.t.Fatalf("%s: fsck: %v: %s%s", what, errors.Join(err, e), out, errOut)
		}
		for _, p := range report.Problems {
			if p.Kind != "orphan" {
				l.t.Fatalf("%s: fsck: %s", what, out)
			}
		}
		return report.Clean
	})
}

// records reads all partitions of a topic up to their ends of now.
func (l *load) records(ctx context.Context, topic, what string) (records map[int32][]*kgo.Record, ends map[int32]int64) {
	l.t.Helper()
	k := l.c.franz(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	defer k.Close()
	listed, err := kadm.NewClient(k).ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		l.t.Fatalf("%s: ends of topic %s: %v", what, topic, err)
	}
	ends, next := map[int32]int64{}, map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	records = map[int32][]*kgo.Record{}
	missing := func() string {
		for p, end := range ends {
			if next[p] < end {
				return fmt.Sprintf("%s/%d is at offset %d of %d", topic, p, next[p], end)
			}
		}
		return ""
	}
	for missing() != "" {
		fetches := k.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			l.t.Fatalf("%s: read of topic %s, %s: %v", what, topic, missing(), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records[r.Partition] = append(records[r.Partition], r)
			next[r.Partition] = r.Offset + 1
		})
	}
	return records, ends
}

// verifyTopic: each producer's records are there once, in its order, at the offsets that
// it was told, offsets have no holes, and the group was given the same.
func (l *load) verifyTopic(ctx context.Context, what string) (rows int) {
	l.t.Helper()
	records, _ := l.records(ctx, busyTopic, what)
	for p := range int32(busyPartitions) {
		next := map[string]int{}
		for i, r := range records[p] {
			name := string(r.Key)
			if r.Offset != int64(i) {
				l.t.Fatalf("%s: %s/%d: offset %d follows %d", what, busyTopic, p, r.Offset, i-1)
			}
			if want := fmt.Sprintf("%s/%d/%d", name, p, next[name]); string(r.Value) != want {
				l.t.Fatalf("%s: %s/%d at offset %d is %q, want %q", what, busyTopic, p, i, r.Value, want)
			}
			if told := l.kafka[name][p].snapshot(l.t); next[name] < len(told) && told[next[name]] != r.Offset {
				l.t.Fatalf("%s: %s/%d: record %q was acknowledged at offset %d and is at %d", what, busyTopic, p, r.Value, told[next[name]], r.Offset)
			}
			next[name]++
			if given := l.seen.values[p]; i < len(given) && given[i] != string(r.Value) {
				l.t.Fatalf("%s: group: partition %d: offset %d is %q, a member was given %q", what, p, i, r.Value, given[i])
			}
		}
		for name, list := range l.kafka {
			if promised := len(list[p].snapshot(l.t)); promised != next[name] || promised == 0 {
				l.t.Errorf("%s: producer %s: %d records of partition %d were acknowledged, %d are there", what, name, promised, p, next[name])
			}
		}
		rows += len(records[p])
	}
	return rows
}

// verifyClean: the compacted topic has the last record of every key, in order, where it
// was acknowledged, and none that was not written.
func (l *load) verifyClean(ctx context.Context, what string) (rows int) {
	l.t.Helper()
	records, ends := l.records(ctx, cleanTopic, what)
	for p, s := range l.clean {
		told := s.snapshot(l.t)
		if ends[int32(p)] != int64(len(told)) || len(told) == 0 {
			l.t.Errorf("%s: %s/%d ends at %d, %d records were acknowledged", what, cleanTopic, p, ends[int32(p)], len(told))
		}
		latest, got := map[int64]int64{}, map[int64]int64{}
		for seq := range told {
			latest[cleanKey(int64(seq))] = int64(seq)
		}
		before := int64(-1)
		for _, r := range records[int32(p)] {
			seq, err := strconv.ParseInt(string(r.Value), 10, 64)
			if err != nil || seq <= before || seq >= int64(len(told)) || told[seq] != r.Offset || string(r.Key) != fmt.Sprintf("key-%d", cleanKey(seq)) {
				l.t.Fatalf("%s: %s/%d: %q = %q at offset %d, behind record %d (%v)", what, cleanTopic, p, r.Key, r.Value, r.Offset, before, err)
			}
			before = seq
			got[cleanKey(seq)] = seq
		}
		for key, seq := range latest {
			if got[key] != seq {
				l.t.Errorf("%s: %s/%d: the last record of key %d is %d, want %d", what, cleanTopic, p, key, got[key], seq)
			}
		}
		rows += len(told)
	}
	return rows
}

// verifyRows: the log table's rows are there once, each part in its order.
func (l *load) verifyRows(ctx context.Context, what string) (rows int) {
	l.t.Helper()
	next := make([]int64, busyParts)
	at := map[mink.BucketRef]mink.Offset{}
	for b, err := range l.cl.Scan(ctx, client.ScanRequest{Table: busyRows, Bucket: -1}) {
		if err != nil {
			l.t.Fatalf("%s: scan of %s: %v", what, busyRows, err)
		}
		n := int(b.Record.NumRows())
		if n == 0 {
			continue
		}
		if b.Meta.Base != at[b.Bucket] || int(b.Meta.Last-b.Meta.Base)+1 != n {
			l.t.Fatalf("%s: %s, bucket %d: a batch of %d rows has offsets %d to %d, want them from %d", what, busyRows, b.Bucket.Index, n, b.Meta.Base, b.Meta.Last, at[b.Bucket])
		}
		at[b.Bucket] = b.Meta.Last + 1
		part, seq := b.Record.Column(0).(*array.Int32), b.Record.Column(1).(*array.Int64)
		for i := range n {
			p := part.Value(i)
			if seq.Value(i) != next[p] {
				l.t.Fatalf("%s: %s: row %d of part %d comes where row %d belongs", what, busyRows, seq.Value(i), p, next[p])
			}
			next[p]++
			rows++
		}
	}
	for part, s := range l.rows {
		if promised := int64(len(s.snapshot(l.t))); promised != next[part] || promised == 0 {
			l.t.Errorf("%s: %s: %d rows of part %d were acknowledged, %d are there", what, busyRows, promised, part, next[part])
		}
	}
	return rows
}

// verifyStock: the changelog of the primary-key table has every acknowledged change of a
// key once and in order; its end, and the rows, are what the key's writer knows.
func (l *load) verifyStock(ctx context.Context, what string) (rows int) {
	l.t.Helper()
	type state struct {
		n, kept int64
		there   bool
	}
	changes, folded, found := map[int64]int64{}, map[int64]state{}, map[int64]state{}
	for b, err := range l.cl.Scan(ctx, client.ScanRequest{Table: busyStock, Bucket: -1}) {
		if err != nil {
			l.t.Fatalf("%s: scan of %s: %v", what, busyStock, err)
		}
		list, err := client.Decode[counted](b.Record)
		if err != nil {
			l.t.Fatal(err)
		}
		for i, r := range list {
			switch change := b.Change(i); change {
			case mink.ChangeUpdateBefore:
				if now := folded[r.ID]; r.Kept == nil || now != (state{r.N, *r.Kept, true}) {
					l.t.Fatalf("%s: %s: the change before key %d had %+v, the state was %+v", what, busyStock, r.ID, r, now)
				}
				continue
			case mink.ChangeDelete:
				folded[r.ID] = state{}
				r.N++
			default:
				if r.Kept == nil {
					l.t.Fatalf("%s: %s: key %d lost a column: %+v", what, busyStock, r.ID, r)
				}
				folded[r.ID] = state{r.N, *r.Kept, true}
			}
			if r.N != changes[r.ID] {
				l.t.Fatalf("%s: %s: change %d of key %d comes where change %d belongs", what, busyStock, r.N, r.ID, changes[r.ID])
			}
			changes[r.ID]++
			rows++
		}
	}
	for b, err := range l.cl.ScanSnapshot(ctx, client.SnapshotRequest{Table: busyStock, Bucket: -1}) {
		if err != nil {
			l.t.Fatalf("%s: rows of %s: %v", what, busyStock, err)
		}
		list, err := client.Decode[counted](b.Record)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, r := range list {
			if _, twice := found[r.ID]; twice || r.Kept == nil {
				l.t.Fatalf("%s: %s: row %+v, twice: %v", what, busyStock, r, twice)
			}
			found[r.ID] = state{r.N, *r.Kept, true}
		}
	}
	for _, k := range l.stock {
		n, kept, there := k.want()
		want := state{}
		if there {
			want = state{n, kept, true}
		}
		if id := k.key.ID; changes[id] != k.changes || folded[id] != want || found[id] != want || k.changes == 0 {
			l.t.Errorf("%s: %s, key %d: %d changes were acknowledged, the changelog has %d; want %+v, folded %+v, found %+v", what, busyStock, id, k.changes, changes[id], want, folded[id], found[id])
		}
	}
	return rows
}

// verifyGroup: the cluster knows every commit that a member was told of.
func (l *load) verifyGroup(ctx context.Context, what string) {
	l.t.Helper()
	k := l.c.franz()
	defer k.Close()
	offsets, err := kadm.NewClient(k).FetchOffsets(ctx, busyGroup)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		l.t.Fatalf("%s: offsets of group %s: %v", what, busyGroup, err)
	}
	for p, at := range l.seen.committed {
		o, ok := offsets.Lookup(busyTopic, p)
		if !ok || o.At < at {
			l.t.Errorf("%s: group %s: offset %d of partition %d was committed, the cluster says %d (%v)", what, busyGroup, at, p, o.At, ok)
		}
	}
	if len(l.seen.committed) == 0 {
		l.t.Errorf("%s: the group has committed nothing", what)
	}
}
