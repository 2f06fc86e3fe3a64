package cluster

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories give now into testdata")

// A story is a list of commands, each followed by "----", its result and what it
// changed in the state, up to an empty line. Lines that start with # are for the
// reader.
//
//	register NODE nonce=N [level=N] [no-kafka]
//	lease NODE LEASE
//	NODE: COMMAND [| COMMAND]     proposed by the node's newest epoch, as one batch
//	NODE@EPOCH: COMMAND           by an older one
//	lost N STREAM:END ... eEPOCH/TRIM[/SLOT,SLOT] ...
//	                              the metadata lack their newest entries: incarnation N begins
//	again NODE                    the node sends its last batch once more
//	time MS                       moves the metadata clock
//	hold STREAM                   what of tiering bounds the stream's trims
//	coordinator GROUP             who coordinates the consumer group
//	reload                        goes on from the state's own snapshot
//	kv-orphan KEY                 whether the sweep may remove the file
//
// A place in an object is written sso1:STREAM@LEADER[START,END), with * behind
// it when the object has the stream's checkpoint at END; e5/wal0 is an object of
// epoch 5, without a prefix it is the WAL's own.
type story struct {
	t       *testing.T
	s       *State
	timeMs  int64
	epochs  map[mink.NodeID]mink.NodeEpoch
	counter map[mink.NodeEpoch]uint64
	last    map[mink.NodeID]*clusterpb.Batch
}

func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := tell(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got (run with -rewrite and read the change):\n%s", diff)
			}
		})
	}
}

// tell runs a story and answers it with the results as they are.
func tell(t *testing.T, text string) string {
	st := &story{t: t, s: NewState(), timeMs: 1000, epochs: map[mink.NodeID]mink.NodeEpoch{},
		counter: map[mink.NodeEpoch]uint64{}, last: map[mink.NodeID]*clusterpb.Batch{}}
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if i+1 < len(lines) && lines[i+1] == "----" {
			for i++; i+1 < len(lines) && lines[i+1] != ""; i++ {
			}
		}
		fmt.Fprintf(&out, "----\n%s", st.run(line))
		if i+1 < len(lines) && lines[i+1] != "" {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

func (st *story) run(line string) string {
	before := dump(st.s)
	head, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	var results []*clusterpb.Result
	switch {
	case head == "register":
		id := mink.NodeID(st.num(args[0]))
		c := registerCmd(id, uint64(st.arg(args, "nonce")))
		if level := st.arg(args, "level"); level >= 0 {
			c.GetRegisterNode().FeatureLevel = uint32(level)
		}
		if st.flag(args, "no-kafka") {
			c.GetRegisterNode().KafkaAddress = ""
		}
		results = st.apply(&clusterpb.Batch{Commands: []*clusterpb.Command{c}})
		if results[0].Code == clusterpb.Code_OK {
			st.epochs[id] = mink.NodeEpoch(results[0].Id)
		}
	case head == "lease":
		id := mink.NodeID(st.num(args[0]))
		results = st.apply(&clusterpb.Batch{Commands: []*clusterpb.Command{leaseCmd(id, st.epochs[id], st.num(args[1]))}})
	case head == "lost":
		results = st.apply(&clusterpb.Batch{Commands: []*clusterpb.Command{st.lostCommand(args)}})
	case head == "again":
		results = st.apply(st.last[mink.NodeID(st.num(args[0]))])
	case head == "coordinator":
		node, epoch, found := st.s.GroupCoordinator(args[0])
		return fmt.Sprintf("node %d epoch %d %v\n", node, epoch, found)
	case head == "hold":
		hold, found := st.s.TierBound(mink.StreamID(st.num(args[0])))
		return fmt.Sprintf("%v %+v\n", found, hold)
	case head == "kv-orphan":
		f, ok := kvplan.ParseKey(args[0])
		return fmt.Sprintf("key=%v orphan=%v\n", ok, st.s.KVOrphan(f))
	case head == "time":
		st.timeMs = st.num(args[0])
	case head == "reload":
		s, err := DecodeSnapshot(records(snapshot(st.s)))
		if err != nil {
			st.t.Fatal(err)
		}
		st.s = s
	default:
		results = st.propose(head, rest)
	}
	if err := st.s.Check(); err != nil {
		st.t.Fatalf("%s: %v", line, err)
	}
	var out strings.Builder
	for _, r := range results {
		writeResult(&out, r)
		for _, part := range r.Parts {
			out.WriteString("  part ")
			writeResult(&out, part)
		}
	}
	writeDiff(&out, before, dump(st.s))
	return out.String()
}

func writeResult(out *strings.Builder, r *clusterpb.Result) {
	fmt.Fprint(out, strings.ToLower(r.Code.String()))
	if r.Id != 0 || len(r.Ids) > 0 {
		fmt.Fprintf(out, " %d", r.Id)
	}
	if len(r.Ids) > 0 {
		fmt.Fprintf(out, " %d", r.Ids)
	}
	if r.Message != "" {
		fmt.Fprintf(out, ": %s", r.Message)
	}
	out.WriteByte('\n')
}

func (st *story) propose(head, rest string) []*clusterpb.Result {
	name, at, old := strings.Cut(strings.TrimSuffix(head, ":"), "@")
	id := mink.NodeID(st.num(name))
	epoch := st.epochs[id]
	if old {
		epoch = mink.NodeEpoch(st.num(at))
	}
	st.counter[epoch]++
	b := &clusterpb.Batch{Epoch: int64(epoch), Counter: st.counter[epoch]}
	for text := range strings.SplitSeq(rest, "|") {
		b.Commands = append(b.Commands, st.command(epoch, strings.Fields(text)))
	}
	st.last[id] = b
	return st.apply(b)
}

func (st *story) apply(b *clusterpb.Batch) []*clusterpb.Result {
	s, results, err := st.s.Apply(st.s.index+1, st.timeMs, b)
	if err != nil {
		st.t.Fatal(err)
	}
	st.s = s
	return results
}

func (st *story) num(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		st.t.Fatal(err)
	}
	return n
}

// arg finds name=number; -1 when absent.
func (st *story) arg(args []string, name string) int64 {
	if text := st.text(args, name); text != "" {
		return st.num(text)
	}
	return -1
}

func (st *story) text(args []string, name string) string {
	for _, a := range args {
		if v, found := strings.CutPrefix(a, name+"="); found {
			return v
		}
	}
	return ""
}

func (st *story) flag(args []string, name string) bool {
	for _, a := range args {
		if a == name {
			return true
		}
	}
	return false
}

func (st *story) walOf(epoch mink.NodeEpoch) plan.WALID {
	w, ok := st.s.WAL(epoch)
	if !ok {
		return plan.WALID{Node: 99, Epoch: epoch, Nonce: 1}
	}
	return w.ID
}

func (st *story) command(epoch mink.NodeEpoch, words []string) *clusterpb.Command {
	verb, args := words[0], words[1:]
	switch verb {
	case "commit", "replace", "rewrite", "release", "recover", "trim", "forget", "loss":
		return st.objectCommand(st.walOf(epoch), verb, args)
	case "seal":
		return sealCmd(mink.NodeEpoch(st.num(args[0])), max(0, st.arg(args, "lease")))
	case "remove":
		return &clusterpb.Command{Kind: &clusterpb.Command_RemoveNode{RemoveNode: &clusterpb.RemoveNode{
			Node: int32(st.num(args[0])), Epoch: max(0, st.arg(args, "epoch")), Lease: max(0, st.arg(args, "lease")),
		}}}
	case "lead":
		c := &clusterpb.LeadBuckets{Lease: st.arg(args, "lease")}
		for _, a := range args[1:] { // stream:node:epoch:expected
			f := strings.Split(a, ":")
			c.Leads = append(c.Leads, &clusterpb.Lead{Stream: st.num(f[0]), Node: int32(st.num(f[1])), Epoch: st.num(f[2]), ExpectedLeaderEpoch: int32(st.num(f[3]))})
		}
		return &clusterpb.Command{Kind: &clusterpb.Command_LeadBuckets{LeadBuckets: c}}
	case "writers":
		return &clusterpb.Command{Kind: &clusterpb.Command_AllocateWriters{AllocateWriters: &clusterpb.AllocateWriters{Count: int32(st.num(args[0]))}}}
	case "producer":
		c := &clusterpb.CommitProducerOffsets{Producer: args[0], Position: []byte(args[1]), ExpectedVersion: max(0, st.arg(args, "version"))}
		for _, a := range args[2:] { // table/partition/bucket=offset
			var o clusterpb.BucketOffset
			if n, _ := fmt.Sscanf(a, "%d/%d/%d=%d", &o.Table, &o.Partition, &o.Bucket, &o.Offset); n == 4 {
				c.Offsets = append(c.Offsets, &o)
			}
		}
		return &clusterpb.Command{Kind: &clusterpb.Command_CommitProducerOffsets{CommitProducerOffsets: c}}
	case "expire":
		return &clusterpb.Command{Kind: &clusterpb.Command_ExpireProducerOffsets{ExpireProducerOffsets: &clusterpb.ExpireProducerOffsets{
			BeforeMs: st.arg(args, "before"), Max: int32(st.arg(args, "max"))}}}
	case "incarnation":
		return &clusterpb.Command{Kind: &clusterpb.Command_SetIncarnation{SetIncarnation: &clusterpb.SetIncarnation{Incarnation: uint64(st.num(args[0]))}}}
	case "lost":
		return st.lostCommand(args)
	}
	return st.catalogCommand(verb, args)
}

func (st *story) lostCommand(args []string) *clusterpb.Command {
	c := &clusterpb.SetIncarnation{Incarnation: uint64(st.num(args[0])), Lost: true}
	c.SinkFence = max(0, st.arg(args, "fence"))
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "fence=") {
			continue
		}
		if table, ok := strings.CutPrefix(a, "stop="); ok {
			c.Stopped = append(c.Stopped, &clusterpb.StoppedSink{Table: st.num(table), Sink: LakeSink, Reason: "test"})
			continue
		}
		if stream, end, ok := strings.Cut(a, ":"); ok {
			c.Ends = append(c.Ends, &clusterpb.StreamEnd{Stream: st.num(stream), End: st.num(end)})
			continue
		}
		f := strings.Split(a, "/")
		epoch := mink.NodeEpoch(st.num(strings.TrimPrefix(f[0], "e")))
		w, _ := st.s.WAL(epoch)
		l := &clusterpb.LostWAL{Wal: walPB(w.ID), Trim: uint64(st.num(f[1]))}
		if len(f) > 2 {
			for slot := range strings.SplitSeq(f[2], ",") {
				l.Missing = append(l.Missing, uint64(st.num(slot)))
			}
		}
		c.Wals = append(c.Wals, l)
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_SetIncarnation{SetIncarnation: c}}
}

func (st *story) catalogCommand(verb string, args []string) *clusterpb.Command {
	switch verb {
	case "database":
		c := createDatabaseCmd(args[0])
		c.GetCreateDatabase().IfNotExists = st.flag(args, "if-not-exists")
		return c
	case "drop-database":
		return &clusterpb.Command{Kind: &clusterpb.Command_DropDatabase{DropDatabase: &clusterpb.DropDatabase{
			Name: args[0], IfExists: st.flag(args, "if-exists"), Cascade: st.flag(args, "cascade")}}}
	case "table":
		db, table, _ := strings.Cut(args[0], ".")
		d := descriptor(db, table, int32(st.arg(args, "buckets")), st.flag(args, "pk"), st.flag(args, "partitioned"))
		if st.flag(args, "lake") {
			d = inLake(d)
		}
		setSinks(d, st.text(args, "sinks"))
		c := createTableCmd(d, byte(st.arg(args, "uuid")))
		c.GetCreateTable().IfNotExists = st.flag(args, "if-not-exists")
		return c
	case "alter":
		var changes []schema.Change
		if name := st.text(args, "add"); name != "" {
			changes = append(changes, schema.Change{Op: schema.AddColumn, Column: &schema.Column{Name: name, Type: schema.MustParseType("INT")}})
		}
		if text := st.text(args, "comment"); text != "" {
			changes = append(changes, schema.Change{Op: schema.SetComment, Comment: &text})
		}
		if text := st.text(args, "lake"); text != "" {
			changes = append(changes, schema.Change{Op: schema.SetOptions, Options: map[string]string{schema.OptionLake: text}})
		}
		if text := st.text(args, "generation"); text != "" {
			changes = append(changes, schema.Change{Op: schema.SetOptions, Options: map[string]string{schema.OptionLakeGeneration: text}})
		}
		if text := st.text(args, "set"); text != "" {
			name, value, _ := strings.Cut(text, ":")
			changes = append(changes, schema.Change{Op: schema.SetOptions, Options: map[string]string{name: value}})
		}
		if n := st.arg(args, "buckets"); n >= 0 {
			changes = append(changes, schema.Change{Op: schema.SetBucketCount, BucketCount: int32(n)})
		}
		return &clusterpb.Command{Kind: &clusterpb.Command_AlterTable{AlterTable: &clusterpb.AlterTable{
			Table: st.num(args[0]), Changes: schema.EncodeChanges(changes), ExpectedSchema: int32(max(0, st.arg(args, "expect")))}}}
	case "drop-table":
		return &clusterpb.Command{Kind: &clusterpb.Command_DropTable{DropTable: &clusterpb.DropTable{Table: st.num(args[0]), IfExists: st.flag(args, "if-exists")}}}
	case "partition":
		c := &clusterpb.CreatePartition{Table: st.num(args[0]), IfNotExists: st.flag(args, "if-not-exists"), Automatic: st.flag(args, "automatic")}
		if v := st.text(args, "values"); v != "" {
			c.Values = strings.Split(v, ",")
		}
		return &clusterpb.Command{Kind: &clusterpb.Command_CreatePartition{CreatePartition: c}}
	case "close-partition":
		return &clusterpb.Command{Kind: &clusterpb.Command_ClosePartition{ClosePartition: &clusterpb.ClosePartition{Table: st.num(args[0]), Partition: st.num(args[1])}}}
	case "drop-partition":
		return &clusterpb.Command{Kind: &clusterpb.Command_DropPartition{DropPartition: &clusterpb.DropPartition{
			Table: st.num(args[0]), Partition: st.num(args[1]), IfExists: st.flag(args, "if-exists"), Now: st.flag(args, "now")}}}
	case "empty":
		return &clusterpb.Command{}
	}
	if c := st.primaryKeyCommand(verb, args); c != nil {
		return c
	}
	if c := st.tieringCommand(verb, args); c != nil {
		return c
	}
	return st.groupCommand(verb, args)
}

func (st *story) objectCommand(w plan.WALID, verb string, args []string) *clusterpb.Command {
	switch verb {
	case "commit":
		objects, items := st.places(w, args)
		return CommitObjectsCommand(plan.CommitObjects{WAL: w, Seq: uint64(st.arg(args, "seq")), WALTrim: uint64(max(0, st.arg(args, "trim"))), Objects: objects, Items: items})
	case "replace":
		c := plan.ReplaceObjects{WAL: w, BasedOn: st.s.index}
		c.Objects, c.Items = st.places(w, args)
		for name := range strings.SplitSeq(st.text(args, "from"), ",") {
			c.Sources = append(c.Sources, st.object(w, name).ID)
		}
		return ReplaceObjectsCommand(c)
	case "rewrite":
		c := plan.RewriteStream{WAL: w, Stream: mink.StreamID(st.num(args[0])), LeaderEpoch: mink.LeaderEpoch(st.arg(args, "leader")),
			Start: mink.Offset(st.arg(args, "start")), Upper: mink.Offset(st.arg(args, "upper")),
			Cleaned: plan.Cleaned{Bytes: max(0, st.arg(args, "bytes")), DueMs: max(0, st.arg(args, "due"))}}
		c.Objects, c.Items = st.places(w, args)
		for from := range strings.SplitSeq(st.text(args, "from"), "+") {
			f := placeText.FindStringSubmatch(from)
			c.Sources = append(c.Sources, plan.Range{Object: st.object(w, f[1]).ID, Start: mink.Offset(st.num(f[4])), End: mink.Offset(st.num(f[5]))})
		}
		return RewriteStreamCommand(c)
	case "release":
		objects, items := st.places(w, args)
		return ReleaseCommand(plan.Release{WAL: w, Stream: mink.StreamID(st.num(args[0])), LeaderEpoch: mink.LeaderEpoch(st.arg(args, "leader")),
			End: mink.Offset(st.arg(args, "end")), To: mink.NodeID(max(0, st.arg(args, "to"))), Objects: objects, Items: items})
	case "recover":
		dead := st.walOf(mink.NodeEpoch(st.num(args[0])))
		objects, items := st.places(dead, args)
		return RecoverWALCommand(plan.RecoverWAL{WAL: dead, Lease: mink.LeaseEpoch(st.arg(args, "lease")), End: uint64(st.arg(args, "end")), Objects: objects, Items: items,
			From: uint64(max(0, st.arg(args, "from"))), Part: slices.Contains(args, "part")})
	case "trim":
		var trims []plan.Trim
		for _, a := range args {
			stream, to, _ := strings.Cut(a, "=")
			to, give, _ := strings.Cut(to, "!") // STREAM=OFFSET, or STREAM=OFFSET!GIVEUPMS
			trim := plan.Trim{Stream: mink.StreamID(st.num(stream)), Start: mink.Offset(st.num(to))}
			if give != "" {
				trim.GiveUpMs = st.num(give)
			}
			trims = append(trims, trim)
		}
		return TrimStreamsCommand(trims)
	case "forget":
		var ids []plan.ObjectID
		for _, a := range args {
			ids = append(ids, st.object(w, a).ID)
		}
		return ForgetObjectsCommand(ids)
	}
	c := &clusterpb.AcceptLoss{Wal: walPB(st.walOf(mink.NodeEpoch(st.num(args[0])))), Slot: uint64(st.num(args[1]))}
	for _, a := range args[2:] { // stream[start,end)
		var g clusterpb.Gap
		if _, err := fmt.Sscanf(a, "%d[%d,%d)", &g.Stream, &g.Start, &g.End); err != nil {
			st.t.Fatal(a, err)
		}
		c.Gaps = append(c.Gaps, &g)
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_AcceptLoss{AcceptLoss: c}}
}

var (
	objectName = regexp.MustCompile(`^(?:e(\d+)/)?(wal|sso|so)(\d+)$`)
	placeText  = regexp.MustCompile(`^((?:e\d+/)?(?:wal|sso|so)\d+):(?:(\d+)@(\d+)\[(\d+),(\d+)\)(\*?))?$`)
)

func (st *story) object(w plan.WALID, name string) plan.Object {
	f := objectName.FindStringSubmatch(name)
	if f == nil {
		st.t.Fatalf("not an object: %q", name)
	}
	if f[1] != "" {
		w = st.walOf(mink.NodeEpoch(st.num(f[1])))
	}
	kind := map[string]plan.ObjectKind{"wal": plan.KindWAL, "sso": plan.KindStreamSet, "so": plan.KindStream}[f[2]]
	return plan.Object{ID: plan.ObjectID{Epoch: w.Epoch, Kind: kind, Seq: uint64(st.num(f[3]))}, WAL: w, Size: 100, IndexPos: 10, IndexLen: 10}
}

func (st *story) places(w plan.WALID, args []string) (objects []plan.Object, items []plan.Item) {
	for _, a := range args {
		f := placeText.FindStringSubmatch(a)
		if f == nil {
			continue
		}
		o := st.object(w, f[1])
		if len(objects) == 0 || objects[len(objects)-1].ID != o.ID {
			objects = append(objects, o)
		}
		if f[2] != "" {
			items = append(items, plan.Item{Object: o.ID, Stream: mink.StreamID(st.num(f[2])), LeaderEpoch: mink.LeaderEpoch(st.num(f[3])),
				Start: mink.Offset(st.num(f[4])), End: mink.Offset(st.num(f[5])), Checkpoint: f[6] != ""})
		}
	}
	return objects, items
}

func TestUnknownCommandStops(t *testing.T) {
	// Field 99 of Command: a kind that a later version may bring.
	var b clusterpb.Batch
	c := &clusterpb.Command{}
	c.ProtoReflect().SetUnknown([]byte{0x9a, 0x06, 0x00})
	b.Commands, b.WriterVersion, b.FeatureLevel = []*clusterpb.Command{c}, "9.9.9", 7
	s := NewState()
	_, _, err := s.Apply(1, 0, &b)
	var unknown *UnknownCommandError
	if !errors.As(err, &unknown) || !errors.Is(err, mink.ErrUnsupported) || !strings.Contains(err.Error(), "9.9.9") || s.Index() != 0 {
		t.Fatal(err)
	}
	if _, _, err := s.Apply(2, 0, &clusterpb.Batch{}); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal("a hole in the log was accepted:", err)
	}
}

func TestResultError(t *testing.T) {
	for code := range clusterpb.Code_name {
		err := ResultError(&clusterpb.Result{Code: clusterpb.Code(code), Message: "why"})
		if (err == nil) != (code == 0) || err != nil && !strings.Contains(err.Error(), "why") {
			t.Errorf("code %d: %v", code, err)
		}
	}
	if err := ResultError(refuse(clusterpb.Code_FENCED, "x")); !errors.Is(err, mink.ErrFenced) || err.Error() != "x" {
		t.Error(err)
	}
	if err := ResultError(&clusterpb.Result{Code: 77}); !errors.Is(err, mink.ErrUnsupported) {
		t.Error(err)
	}
}

func writeDiff(out *strings.Builder, before, after []string) {
	was, is := map[string]bool{}, map[string]bool{}
	for _, l := range before {
		was[l] = true
	}
	for _, l := range after {
		is[l] = true
	}
	for _, l := range before {
		if !is[l] {
			fmt.Fprintf(out, "- %s\n", l)
		}
	}
	for _, l := range after {
		if !was[l] {
			fmt.Fprintf(out, "+ %s\n", l)
		}
	}
}

// dump describes a state in lines, one per thing.
func dump(s *State) []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
	if s.lease.Epoch != 0 {
		add("lease %d node %d epoch %d", s.lease.Epoch, s.lease.Node, s.lease.NodeEpoch)
	}
	if s.incarnation != 0 {
		add("incarnation %d", s.incarnation)
	}
	if s.timeLine != 0 {
		add("time line %d next database=%d table=%d partition=%d stream=%d writer=%d producer=%d", s.timeLine, s.nextDatabase, s.nextTable, s.nextPartition, s.nextStream, s.nextWriter, s.nextProducerVersion)
	}
	if s.sinkFence != 0 {
		add("fences of sinks above %d", s.sinkFence)
	}
	for n := range s.Nodes() {
		add("node %d epoch %d sealed=%v", n.ID, n.Epoch, n.Sealed)
	}
	for epoch, w := range s.wals.all() {
		state := "live"
		if w.Recovered {
			state = fmt.Sprintf("recovered end=%d", w.End)
		} else if w.Sealed {
			state = fmt.Sprintf("sealed %q", w.sealReason)
		}
		lost := ""
		for _, l := range w.lost {
			if l.Slot == NoSlot {
				lost += fmt.Sprintf(" given out %v", l.Gaps)
				continue
			}
			lost += fmt.Sprintf(" lost %d %v", l.Slot, l.Gaps)
		}
		add("wal e%d node %d trim=%d commit=%d %s%s", epoch, w.ID.Node, w.Trim, w.CommitSeq, state, lost)
	}
	for d := range s.Databases() {
		add("database %d %s", d.ID, d.Name)
	}
	for t := range s.AllTables() {
		add("table %d %s.%s schema=%d", t.ID, t.Descriptor.Database, t.Descriptor.Table, t.Descriptor.Schema.ID)
	}
	for _, p := range s.partitions.all() {
		add("partition %d of table %d %q streams=%d closed=%v automatic=%v", p.ID, p.Table, p.Values, p.Streams, p.Closed, p.Automatic)
	}
	for st := range s.Streams() {
		add("stream %d %s [%d,%d) %s %s", st.ID, st.Bucket, st.Start, st.End, ownerText(st.Owner), rangesText(st))
	}
	for o := range s.Objects() {
		add("object %s", idText(o.ID))
	}
	for o := range s.parked.all() {
		add("parked %s", idText(o.ID))
	}
	for d := range s.Destroyed() {
		add("destroyed %s at index %d", idText(d.Object.ID), d.Index)
	}
	out = append(out, dumpPrimaryKey(s)...)
	out = append(out, dumpTiering(s)...)
	for g := range s.Groups() {
		add("group %s type=%q occupied=%v emptied=%d moved=%d offsets=%d", g.Name, g.ProtocolType, g.Occupied, g.EmptiedMs, g.MovedIndex, g.Offsets)
		for b, o := range s.GroupOffsets(g.Name) {
			add("offset %s %s=%d@%d:%s committed=%d", g.Name, b, o.Offset, o.LeaderEpoch, o.Metadata, o.CommittedMs)
		}
	}
	for p := range s.Producers() {
		add("producer %s %q version=%d %v", p.Name, p.Position, p.Version, p.Offsets)
	}
	return out
}

func ownerText(o plan.Owner) string {
	if o.NodeEpoch == 0 {
		return fmt.Sprintf("led by nobody, leader epoch %d", o.LeaderEpoch)
	}
	return fmt.Sprintf("led by node %d e%d, leader epoch %d", o.Node, o.NodeEpoch, o.LeaderEpoch)
}

func rangesText(st plan.Stream) string {
	var b bytes.Buffer
	for _, r := range st.Ranges {
		fmt.Fprintf(&b, "%s[%d,%d) ", idText(r.Object), r.Start, r.End)
	}
	for _, g := range st.Gaps {
		fmt.Fprintf(&b, "gap[%d,%d) ", g.Start, g.End)
	}
	if !st.Checkpoint.IsZero() {
		fmt.Fprintf(&b, "checkpoint %s@%d", idText(st.Checkpoint), st.CheckEnd)
	}
	if c := st.Cleaned; c != (plan.Cleaned{}) {
		fmt.Fprintf(&b, " cleaned@%d %d bytes due=%d", c.End, c.Bytes, c.DueMs)
	}
	return b.String()
}

func idText(id plan.ObjectID) string {
	kind := map[plan.ObjectKind]string{plan.KindWAL: "wal", plan.KindStreamSet: "sso", plan.KindStream: "so"}[id.Kind]
	return fmt.Sprintf("e%d/%s%d", id.Epoch, kind, id.Seq)
}
