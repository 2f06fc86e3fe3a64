package flight

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// action is one of DoAction's.
type action struct {
	name string
	doc  string // body -> answer: what it does
	run  func(ctx context.Context, body []byte) (any, error)
	// atHolder: only the holder of the coordinator lease can do it.
	atHolder bool
	// many, in place of run, answers any number of bodies, through send.
	many func(ctx context.Context, body []byte, send func(any) error) error
}

// holder marks an action that is sent on to the holder of the coordinator lease.
func holder(a action) action {
	a.atHolder = true
	return a
}

// nothing is the body or the answer without fields.
type nothing struct{}

// taking makes an action's run of a function of its decoded body.
func taking[B any](name string, run func(context.Context, B) (any, error)) func(context.Context, []byte) (any, error) {
	return func(ctx context.Context, body []byte) (any, error) {
		var b B
		if err := wire.Decode(name, body, &b); err != nil {
			return nil, err
		}
		return run(ctx, b)
	}
}

func entry[B any](name, doc string, run func(context.Context, B) (any, error)) action {
	return action{name: name, doc: doc, run: taking(name, run)}
}

// answersMany is the entry of an action that answers many bodies.
func answersMany[B any](name, doc string, run func(ctx context.Context, body B, send func(any) error) error) action {
	return action{name: name, doc: doc, many: func(ctx context.Context, body []byte, send func(any) error) error {
		var b B
		if err := wire.Decode(name, body, &b); err != nil {
			return err
		}
		return run(ctx, b, send)
	}}
}

// actionTable lists every action; ListActions and docs/flight.md are made of it.
func (s *service) actionTable() []action {
	return []action{
		entry(api.ActionCreateDatabase, "Named -> {}: create a database", s.createDatabase),
		entry(api.ActionDropDatabase, "Named -> {}: drop a database; cascade: with its tables", s.dropDatabase),
		entry(api.ActionListDatabases, "{} -> Databases", s.listDatabases),
		entry(api.ActionCreateTable, "CreateTable -> Table: create a table from a descriptor", s.createTable),
		entry(api.ActionDropTable, "Named -> {}: drop a table and its rows", s.dropTable),
		entry(api.ActionAlterTable, "AlterTable -> Table: apply changes in order, all or none", s.alterTable),
		entry(api.ActionDescribeTable, "Named -> Table", s.describeTable),
		entry(api.ActionListTables, "Named -> Tables: of one database, or all with an empty name", s.listTables),
		entry(api.ActionCreatePartition, "PartitionRequest -> Partition", s.createPartition),
		entry(api.ActionDropPartition, "PartitionRequest -> {}: drop a partition and its rows", s.dropPartition),
		entry(api.ActionListPartitions, "Named -> Partitions: with the leaders of their buckets", s.listPartitions),
		entry(api.ActionInitWriter, "{} -> Writer: a fresh writer id for idempotent appends", s.initWriter),
		entry(api.ActionListOffsets, "ListOffsets -> Offsets: one position in every bucket", s.listOffsets),
		entry(api.ActionLookup, "Lookup -> LookupRows: rows of a primary-key table by their keys", s.lookup),
		entry(api.ActionPrefixLookup, "PrefixLookup -> PrefixRows: rows whose key begins with a prefix", s.prefixLookup),
		entry(api.ActionCount, "CountRequest -> Counts: the rows of a primary-key table", s.count),
		entry(api.ActionCommitProducer, "Producer -> Producer: store a named producer's position", s.commitProducer),
		entry(api.ActionGetProducer, "Named -> Producer: read it back", s.getProducer),
		entry(api.ActionDescribeCluster, "{} -> Cluster", s.describeCluster),
		entry(api.ActionGetConfig, "{} -> Config: of the answering node, secrets hidden", s.getConfig),
		entry(api.ActionNodeStats, "{} -> Stats: of the answering node", s.nodeStats),
		entry(api.ActionHealth, "{} -> Health: of the answering node", s.health),
		entry(api.ActionAskNodes, "AskNodes -> NodeAnswers: what every live node, or one, says of itself; one that does not answer fails nothing", s.askNodes),
		entry(api.ActionCheck, "CheckRequest -> CheckReport: compare metadata and object store", s.check),
		holder(entry(api.ActionAcceptLoss, "AcceptLoss -> LossReport: what damaged write-ahead logs have lost; confirm: give it up", s.acceptLoss)),
		holder(answersMany(api.ActionRebalance, "Rebalance -> many RebalanceStep: even out the buckets over the nodes; each move when it has ended, the report last", s.rebalance)),
		holder(entry(api.ActionRemoveNode, "RemoveNode -> RemovedNode: forget a node that has ended", s.removeNode)),
		holder(entry(api.ActionTierTable, "TierTable -> TierReport: a round of tiering of a table, now", s.tierTable)),
		entry(api.ActionUploadBuckets, "UploadBuckets -> Offsets: the leaders make stream objects of what is acknowledged, now", s.uploadBuckets),
		entry(api.ActionLakeSnapshot, "Named -> LakeSnapshot: how far a table is in the lake", s.lakeSnapshot),
		holder(entry(api.ActionMaintainTable, "MaintainTable -> MaintenanceReport: small files of a table at a sink are merged, or old snapshots expired, now", s.maintainTable)),
		entry(api.ActionReleaseBucket, "ReleaseBucket -> {}: the bucket's leader moves it to another live node", s.releaseBucket),
	}
}

// ListActions lists what DoAction knows.
func (s *service) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	for _, a := range s.actions {
		if err := stream.Send(&flight.ActionType{Type: a.name, Description: a.doc}); err != nil {
			return err
		}
	}
	return nil
}

// DoAction runs one action and answers one JSON body, or the many that it makes.
func (s *service) DoAction(r *flight.Action, stream flight.FlightService_DoActionServer) error {
	for _, a := range s.actions {
		if a.name != r.GetType() {
			continue
		}
		if a.atHolder {
			if n, ok := s.holderElsewhere(stream.Context()); ok {
				return s.askHolder(stream.Context(), n, r, stream.Send)
			}
		}
		send := func(out any) error { return stream.Send(&flight.Result{Body: api.JSON(out)}) }
		if a.many != nil {
			return a.many(stream.Context(), r.GetBody(), send)
		}
		out, err := a.run(stream.Context(), r.GetBody())
		if err != nil {
			return err
		}
		return send(out)
	}
	names := make([]string, len(s.actions))
	for i, a := range s.actions {
		names[i] = a.name
	}
	return fmt.Errorf("action %.100q: %w%s", r.GetType(), mink.ErrUnsupported, wire.Suggest(r.GetType(), names))
}

// holderElsewhere answers the live node that holds the coordinator lease, as far as
// this node knows, when it is another one and may be asked.
func (s *service) holderElsewhere(ctx context.Context) (cluster.Node, bool) {
	if s.peers == nil || peers.Forwarded(ctx) {
		return cluster.Node{}, false
	}
	view := s.backend.View()
	n, ok := view.Node(view.Lease().Node)
	self, _ := s.backend.Self()
	return n, ok && n.ID != self && !n.Sealed && n.Epoch == view.Lease().NodeEpoch
}

// askHolder lets the lease holder answer. It is asked once: whether what it was asked
// for has happened, when it does not answer, nobody here knows.
func (s *service) askHolder(ctx context.Context, n cluster.Node, r *flight.Action, send func(*flight.Result) error) error {
	applied, err := s.peers.Each(ctx, n, r.GetType(), r.GetBody(), func(answer []byte) error { return send(&flight.Result{Body: answer}) })
	if err != nil {
		return fmt.Errorf("%s, at the coordinator: %w", r.GetType(), err)
	}
	// What was done there, the caller may look for here next.
	wait, cancel := context.WithTimeout(ctx, s.cfg.AppliedWait)
	defer cancel()
	if err := s.backend.WaitApplied(wait, applied); err != nil {
		s.log.Warn("an action was done at the coordinator, and this node has not applied it yet", "action", r.GetType(), "index", applied, "error", err)
	}
	return nil
}
