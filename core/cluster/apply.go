package cluster

import (
	"fmt"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// UnknownCommandError stops a node: it cannot follow the log any further.
type UnknownCommandError struct {
	Index         uint64
	WriterVersion string
	WriterLevel   uint32
}

func (e *UnknownCommandError) Error() string {
	return fmt.Sprintf("metadata log entry %d has a command that this binary (feature level %d) does not know; version %q (feature level %d) wrote it: upgrade this node to that version",
		e.Index, FeatureLevel, e.WriterVersion, e.WriterLevel)
}

// Unwrap makes errors.Is(err, mink.ErrUnsupported) true.
func (e *UnknownCommandError) Unwrap() error { return mink.ErrUnsupported }

// Apply makes the state after the log entry `index`, written at timeMs of the
// metadata database's clock, with one result per command, in order. The
// receiver stays as it was. The results are shared with the state: do not change
// them. Readers of any state may run beside it, but the Apply calls of one state
// and its descendants must follow one another.
//
// Errors: index is not the state's plus one (mink.ErrInvalid: the log has a hole
// or was replayed), or *UnknownCommandError. The node must stop then.
func (s *State) Apply(index uint64, timeMs int64, b *clusterpb.Batch) (*State, []*clusterpb.Result, error) {
	if index != s.index+1 {
		return nil, nil, fmt.Errorf("apply metadata log entry %d to the state at %d: the next entry is %d: %w", index, s.index, s.index+1, mink.ErrInvalid)
	}
	for _, c := range b.GetCommands() {
		if c.GetKind() == nil && len(c.ProtoReflect().GetUnknown()) > 0 {
			return nil, nil, &UnknownCommandError{Index: index, WriterVersion: b.GetWriterVersion(), WriterLevel: b.GetFeatureLevel()}
		}
	}
	t := s.begin(index, timeMs, mink.NodeEpoch(b.GetEpoch()))
	results, repeated := t.repeated(b)
	if !repeated {
		results = make([]*clusterpb.Result, len(b.GetCommands()))
		for i, c := range b.GetCommands() {
			if results[i] = t.admit(b, c); results[i] == nil {
				results[i] = t.dispatch(c)
			}
		}
		t.remember(b, results)
	}
	t.s.freeze()
	return t.s, results, nil
}

// repeated answers a batch that this epoch sent before: the last one's stored
// results; an older one's are gone, and its proposer has long had them.
func (t *txn) repeated(b *clusterpb.Batch) ([]*clusterpb.Result, bool) {
	if t.epoch == 0 || b.GetCounter() == 0 || t.s.faults.noDedup {
		return nil, false
	}
	d, found := t.s.dedup.get(t.epoch)
	switch {
	case !found || b.GetCounter() > d.counter:
		return nil, false
	case b.GetCounter() == d.counter && len(d.results) == len(b.GetCommands()):
		return d.results, true
	}
	results := make([]*clusterpb.Result, len(b.GetCommands()))
	for i := range results {
		results[i] = conflict("batch %d of node epoch %d is older than the last one applied, %d: it was answered before", b.GetCounter(), t.epoch, d.counter)
	}
	return results, true
}

func (t *txn) remember(b *clusterpb.Batch, results []*clusterpb.Result) {
	if t.epoch == 0 || b.GetCounter() == 0 {
		return
	}
	if w, found := t.s.wals.get(t.epoch); found && !w.Sealed {
		t.s.dedup.set(t.epoch, &dedupEntry{counter: b.GetCounter(), results: results})
	}
}

// admit is the node fence: nil lets the command through.
func (t *txn) admit(b *clusterpb.Batch, c *clusterpb.Command) *clusterpb.Result {
	if level := requiredLevel(c); level > t.s.featureLevel {
		return refuse(clusterpb.Code_UNSUPPORTED, "the command needs feature level %d, the cluster is at %d: upgrade every node first", level, t.s.featureLevel)
	}
	switch c.GetKind().(type) {
	case nil:
		return invalid("the command is empty")
	case *clusterpb.Command_RegisterNode:
		if t.epoch != 0 || len(b.GetCommands()) != 1 {
			return invalid("a registration stands alone in its batch, of epoch 0: the batch has epoch %d and %d commands", t.epoch, len(b.GetCommands()))
		}
		return nil
	case *clusterpb.Command_LeaseTaken, *clusterpb.Command_SetIncarnation:
		if t.epoch == 0 {
			return nil
		}
	}
	if t.epoch <= 0 {
		return fenced("the proposer is not registered: register the node first")
	}
	w, found := t.s.wals.get(t.epoch)
	switch {
	case !found:
		return fenced("node epoch %d was never registered", t.epoch)
	case w.Sealed && !t.s.faults.noSealCheck:
		return fenced("node %d, epoch %d, is sealed (%s): register anew", w.ID.Node, t.epoch, w.sealReason)
	}
	return nil
}

// requiredLevel is the feature level that brought the command kind; so far all
// are of the first, which is not released yet: tiering (its three commands, what
// give_up_ms and lake do to others) belongs to it.
func requiredLevel(*clusterpb.Command) uint32 { return 1 }

func (t *txn) dispatch(c *clusterpb.Command) *clusterpb.Result {
	switch k := c.GetKind().(type) {
	case *clusterpb.Command_RegisterNode:
		return t.registerNode(k.RegisterNode)
	case *clusterpb.Command_SealNode:
		return t.sealNode(k.SealNode)
	case *clusterpb.Command_RecoverWal:
		return t.recoverWAL(k.RecoverWal)
	case *clusterpb.Command_RemoveNode:
		return t.removeNode(k.RemoveNode)
	case *clusterpb.Command_LeaseTaken:
		return t.leaseTaken(k.LeaseTaken)
	case *clusterpb.Command_CommitObjects:
		return t.commitObjects(k.CommitObjects)
	case *clusterpb.Command_ReplaceObjects:
		return t.replaceObjects(k.ReplaceObjects)
	case *clusterpb.Command_RewriteStream:
		return t.rewriteStream(k.RewriteStream)
	case *clusterpb.Command_TrimStreams:
		return t.trimStreams(k.TrimStreams)
	case *clusterpb.Command_ForgetObjects:
		return t.forgetObjects(k.ForgetObjects)
	case *clusterpb.Command_AcceptLoss:
		return t.acceptLoss(k.AcceptLoss)
	case *clusterpb.Command_CreateDatabase:
		return t.createDatabase(k.CreateDatabase)
	case *clusterpb.Command_DropDatabase:
		return t.dropDatabase(k.DropDatabase)
	case *clusterpb.Command_CreateTable:
		return t.createTable(k.CreateTable)
	case *clusterpb.Command_AlterTable:
		return t.alterTable(k.AlterTable)
	case *clusterpb.Command_DropTable:
		return t.dropTable(k.DropTable)
	case *clusterpb.Command_CreatePartition:
		return t.createPartition(k.CreatePartition)
	case *clusterpb.Command_ClosePartition:
		return t.closePartition(k.ClosePartition)
	case *clusterpb.Command_DropPartition:
		return t.dropPartition(k.DropPartition)
	case *clusterpb.Command_LeadBuckets:
		return t.leadBuckets(k.LeadBuckets)
	case *clusterpb.Command_Release:
		return t.release(k.Release)
	case *clusterpb.Command_AllocateWriters:
		return t.allocateWriters(k.AllocateWriters)
	case *clusterpb.Command_CommitProducerOffsets:
		return t.commitProducerOffsets(k.CommitProducerOffsets)
	case *clusterpb.Command_ExpireProducerOffsets:
		return t.expireProducerOffsets(k.ExpireProducerOffsets)
	case *clusterpb.Command_CommitGroupOffsets:
		return t.commitGroupOffsets(k.CommitGroupOffsets)
	case *clusterpb.Command_DeleteGroups:
		return t.deleteGroups(k.DeleteGroups)
	case *clusterpb.Command_DeleteGroupOffsets:
		return t.deleteGroupOffsets(k.DeleteGroupOffsets)
	case *clusterpb.Command_ExpireGroups:
		return t.expireGroups(k.ExpireGroups)
	case *clusterpb.Command_SetIncarnation:
		return t.setIncarnation(k.SetIncarnation)
	case *clusterpb.Command_CommitKvSnapshot:
		return t.commitKVSnapshot(k.CommitKvSnapshot)
	case *clusterpb.Command_ForgetKvFiles:
		return t.forgetKVFiles(k.ForgetKvFiles)
	case *clusterpb.Command_LeaseAutoIncrement:
		return t.leaseAutoIncrement(k.LeaseAutoIncrement)
	case *clusterpb.Command_CommitTieredRound:
		return t.commitTieredRound(k.CommitTieredRound)
	case *clusterpb.Command_ForgetDroppedSink:
		return t.forgetDroppedSink(k.ForgetDroppedSink)
	case *clusterpb.Command_FinishBuckets:
		return t.finishBuckets(k.FinishBuckets)
	}
	return invalid("the command is empty")
}
