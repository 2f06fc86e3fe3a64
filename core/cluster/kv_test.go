package cluster

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// primaryKey is what a leader of a primary-key bucket proposes, or who forgets files.
func (m *sim) primaryKey(v *State, n *simNode) *clusterpb.Command {
	if m.chance(15) {
		var files []kvplan.BucketFile
		for d := range v.DestroyedKV() {
			if m.chance(60) {
				files = append(files, d.BucketFile)
			}
		}
		for id, b := range v.KVBuckets() { // one that may not be forgotten
			if st, found := v.Stream(id); found && m.chance(3) {
				files = append(files, kvplan.BucketFile{Bucket: st.Bucket, File: b.Snapshots[0].Files[0]})
			}
		}
		return ForgetKVFilesCommand(files)
	}
	var mine []plan.Stream
	for st := range v.StreamsLedBy(n.epoch) {
		if t, found := v.Table(st.Bucket.Table); found && len(t.Descriptor.PrimaryKey) > 0 {
			mine = append(mine, st)
		}
	}
	st, found := pick(m, mine)
	if !found || m.chance(5) { // another one's, or of a log table
		if st, found = pick(m, slices.Collect(v.Streams())); !found {
			return createDatabaseCmd("d1")
		}
	}
	if m.chance(25) {
		return LeaseAutoIncrementCommand(st.ID, st.Owner.LeaderEpoch, m.r.IntN(1000))
	}
	return m.kvSnapshot(v, st)
}

// kvSnapshot names new files, retained ones, and now and then one that was given up.
func (m *sim) kvSnapshot(v *State, st plan.Stream) *clusterpb.Command {
	s := kvplan.Snapshot{Epoch: st.Owner.LeaderEpoch, Offset: st.End - mink.Offset(m.r.IntN(4)), Rows: m.r.Int64N(100) - 1}
	b := v.KVBucket(st.ID)
	number := uint64(1)
	if b != nil {
		s.Offset = max(s.Offset, b.Snapshots[len(b.Snapshots)-1].Offset)
		if b.Epoch == s.Epoch {
			number = b.Number + 1
		}
	}
	s.Offset = max(s.Offset, st.Start)
	if m.chance(5) {
		s.Offset += mink.Offset(m.r.IntN(9) - 4)
	}
	for range 1 + m.r.IntN(3) {
		s.Files = append(s.Files, m.kvFile(s.Epoch, number))
		number++
	}
	for _, f := range kvplan.FilesOf(v.KVSnapshots(st.ID), nil) {
		if m.chance(60) {
			s.Files = append(s.Files, f)
		}
	}
	for d := range v.DestroyedKV() {
		if d.Bucket == st.Bucket && m.chance(4) {
			s.Files = append(s.Files, d.File)
		}
	}
	if m.chance(3) && number > 2 { // an old number
		s.Files[0].Number = 1 + m.r.Uint64N(number-1)
	}
	return CommitKVSnapshotCommand(st.ID, s, 1+m.r.IntN(3))
}

func (m *sim) kvFile(epoch mink.LeaderEpoch, number uint64) kvplan.File {
	return kvplan.File{Epoch: epoch, Number: number, Nonce: 7, Content: kvplan.ContentID{1: byte(number), 2: byte(epoch)}, Size: int64(number)}
}

// kvModel remembers what the state may forget.
type kvModel struct {
	gone    map[kvplan.BucketFile]bool // destroyed or forgotten: never named again
	numbers map[mink.TableID]int64     // the last one given out
}

func newKVModel() kvModel {
	return kvModel{gone: map[kvplan.BucketFile]bool{}, numbers: map[mink.TableID]int64{}}
}

// compare checks who commits, that snapshots only go forward, and that no file and
// no number comes back.
func (k *kvModel) compare(before, after *State, b *clusterpb.Batch, results []*clusterpb.Result) error {
	for i, c := range b.Commands {
		if results[i].Code != clusterpb.Code_OK || before.autoIncrement == after.autoIncrement && before.kv == after.kv {
			continue
		}
		if s := c.GetCommitKvSnapshot(); s != nil {
			st, found := before.Stream(mink.StreamID(s.Stream))
			again := slices.ContainsFunc(before.KVSnapshots(st.ID), func(have kvplan.Snapshot) bool { return have.ID == results[i].Id })
			if found && !again && len(b.Commands) == 1 && (st.Owner.NodeEpoch != mink.NodeEpoch(b.Epoch) || st.Owner.LeaderEpoch != mink.LeaderEpoch(s.LeaderEpoch)) {
				return fmt.Errorf("stream %d got a KV snapshot from epoch %d, leader epoch %d, its owner is %+v", st.ID, b.Epoch, s.LeaderEpoch, st.Owner)
			}
		}
		if l := c.GetLeaseAutoIncrement(); l != nil {
			st, _ := before.Stream(mink.StreamID(l.Stream))
			if st.ID == 0 {
				continue // of a table that this batch made: none does
			}
			first, last, err := LeasedNumbers(results[i])
			if err != nil || first <= k.numbers[st.Bucket.Table] || last < first || last-first >= int64(l.Count) || last > math.MaxInt32 {
				return fmt.Errorf("table %d: numbers %d to %d behind %d: %w", st.Bucket.Table, first, last, k.numbers[st.Bucket.Table], err)
			}
			k.numbers[st.Bucket.Table] = last
		}
	}
	for id, old := range before.KVBuckets() {
		now := after.KVBucket(id)
		if now == nil {
			if _, left := after.Stream(id); left {
				return fmt.Errorf("stream %d lost its KV snapshots", id)
			}
			continue
		}
		newest, _ := now.Newest()
		last, _ := old.Newest()
		if newest.Offset < last.Offset || newest.ID < last.ID || now.Epoch < old.Epoch {
			return fmt.Errorf("the KV snapshots of stream %d went back from %+v to %+v", id, last, newest)
		}
	}
	if before.kv != after.kv || before.kvDestroyed != after.kvDestroyed {
		return k.files(before, after)
	}
	return nil
}

// files: each is named, destroyed or was so before; and goes only this way.
func (k *kvModel) files(before, after *State) error {
	named := func(s *State) map[kvplan.BucketFile]bool {
		out := map[kvplan.BucketFile]bool{}
		for id, b := range s.KVBuckets() {
			st, _ := s.Stream(id)
			for _, f := range kvplan.FilesOf(b.Snapshots, nil) {
				out[kvplan.BucketFile{Bucket: st.Bucket, File: f}] = true
			}
		}
		return out
	}
	now := named(after)
	for f := range now {
		if k.gone[f] {
			return fmt.Errorf("file %s came back", f.Key())
		}
	}
	for d := range after.DestroyedKV() {
		k.gone[d.BucketFile] = true
	}
	for f := range named(before) {
		if !now[f] && !k.gone[f] {
			return fmt.Errorf("file %s is neither named nor destroyed", f.Key())
		}
	}
	return nil
}

// primaryKeyCommand reads
//
//	kv-snapshot STREAM leader=N offset=N [rows=N] [retain=N] FILE...   FILE: EPOCH/NUMBER[=CONTENT]
//	kv-forget TABLE/PARTITION/BUCKET:EPOCH/NUMBER...
//	numbers STREAM leader=N count=N
func (st *story) primaryKeyCommand(verb string, args []string) *clusterpb.Command {
	switch verb {
	case "kv-snapshot":
		s := kvplan.Snapshot{Epoch: mink.LeaderEpoch(st.arg(args, "leader")), Offset: mink.Offset(st.arg(args, "offset")), Rows: st.arg(args, "rows")}
		for _, a := range args[1:] {
			if name, content, _ := strings.Cut(a, "="); strings.Contains(name, "/") {
				s.Files = append(s.Files, st.kvFile(name, content))
			}
		}
		retain := st.arg(args, "retain")
		if retain < 0 {
			retain = 2
		}
		return CommitKVSnapshotCommand(mink.StreamID(st.num(args[0])), s, int(retain))
	case "kv-forget":
		var files []kvplan.BucketFile
		for _, a := range args {
			bucket, name, _ := strings.Cut(a, ":")
			f := kvplan.BucketFile{File: st.kvFile(name, "")}
			if n, _ := fmt.Sscanf(bucket, "%d/%d/%d", &f.Bucket.Table, &f.Bucket.Partition, &f.Bucket.Index); n != 3 {
				st.t.Fatal(a)
			}
			files = append(files, f)
		}
		return ForgetKVFilesCommand(files)
	case "numbers":
		return LeaseAutoIncrementCommand(mink.StreamID(st.num(args[0])), mink.LeaderEpoch(st.arg(args, "leader")), int(st.arg(args, "count")))
	}
	return nil
}

func (st *story) kvFile(name, content string) kvplan.File {
	epoch, number, _ := strings.Cut(name, "/")
	f := kvplan.File{Epoch: mink.LeaderEpoch(st.num(epoch)), Number: uint64(st.num(number)), Nonce: 0xa, Size: 10}
	copy(f.Content[:], content)
	return f
}

func dumpPrimaryKey(s *State) (out []string) {
	for id, b := range s.KVBuckets() {
		for _, k := range b.Snapshots {
			var files []string
			for _, f := range k.Files {
				files = append(files, fmt.Sprintf("%d/%d", f.Epoch, f.Number))
			}
			out = append(out, fmt.Sprintf("kv snapshot %d of stream %d leader epoch %d offset=%d rows=%d at %d files %s",
				k.ID, id, k.Epoch, k.Offset, k.Rows, k.CommittedMs, strings.Join(files, " ")))
		}
	}
	for d := range s.DestroyedKV() {
		out = append(out, fmt.Sprintf("destroyed kv file %s:%d/%d at index %d", d.Bucket, d.Epoch, d.Number, d.Index))
	}
	for id, next := range s.autoIncrement.all() {
		out = append(out, fmt.Sprintf("table %d next number %d", id, next))
	}
	return out
}

// The last numbers of each type are given out, then the error says why there are
// no more.
func TestAutoIncrementEnds(t *testing.T) {
	for kind, last := range map[string]int64{"INT": math.MaxInt32, "BIGINT": math.MaxInt64} {
		s := NewState()
		apply := func(c *clusterpb.Command, epoch int64) *clusterpb.Result {
			t.Helper()
			next, results, err := s.Apply(s.Index()+1, 0, &clusterpb.Batch{Epoch: epoch, Commands: []*clusterpb.Command{c}})
			if err != nil {
				t.Fatal(err)
			}
			s = next
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
			return results[0]
		}
		apply(registerCmd(1, 11), 0)
		apply(createDatabaseCmd("d"), 1)
		d := descriptor("d", "t", 1, true, false)
		d.Schema.Columns[2].Type = schema.MustParseType(kind)
		if err := ResultError(apply(createTableCmd(d, 1), 1)); err != nil {
			t.Fatal(err)
		}
		next := *s
		next.autoIncrement.set(1, last-1)
		next.freeze()
		s = &next
		first, end, err := LeasedNumbers(apply(LeaseAutoIncrementCommand(1, 1, 10), 1))
		if err != nil || first != last-1 || end != last {
			t.Fatalf("%s: %d to %d, %v", kind, first, end, err)
		}
		_, _, err = LeasedNumbers(apply(LeaseAutoIncrementCommand(1, 1, 1), 1))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`column "n" of table d.t: its type holds numbers up to %d and all are used up`, last)) {
			t.Fatalf("%s: %v", kind, err)
		}
		if _, err := DecodeSnapshot(records(snapshot(s))); err != nil {
			t.Fatal(err)
		}
	}
}

// A table that loses its auto-increment column leaves no number behind: a state with
// one is refused as damaged when a snapshot of it is read.
func TestAutoIncrementColumnDropped(t *testing.T) {
	s := NewState()
	apply := func(c *clusterpb.Command, epoch int64) *clusterpb.Result {
		t.Helper()
		next, results, err := s.Apply(s.Index()+1, 0, &clusterpb.Batch{Epoch: epoch, Commands: []*clusterpb.Command{c}})
		if err == nil {
			err = ResultError(results[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		s = next
		return results[0]
	}
	apply(registerCmd(1, 11), 0)
	apply(createDatabaseCmd("d"), 1)
	apply(createTableCmd(descriptor("d", "t", 1, true, false), 1), 1)
	apply(LeaseAutoIncrementCommand(1, 1, 10), 1)
	table, _ := s.tables.get(1)
	name, _ := autoIncrementColumn(&table.Descriptor.Schema)
	apply(&clusterpb.Command{Kind: &clusterpb.Command_AlterTable{AlterTable: &clusterpb.AlterTable{
		Table: 1, Changes: schema.EncodeChanges([]schema.Change{{Op: schema.DropColumn, Name: name}}),
	}}}, 1)
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeSnapshot(records(snapshot(s))); err != nil {
		t.Fatal(err)
	}
}
