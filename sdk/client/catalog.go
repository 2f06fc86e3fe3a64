package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// CreateDatabase creates a database.
func (c *Client) CreateDatabase(ctx context.Context, name string, ifNotExists bool) error {
	return c.do(ctx, api.ActionCreateDatabase, api.Named{Name: name, IfNotExists: ifNotExists}, nil)
}

// DropDatabase drops a database; with cascade its tables too.
func (c *Client) DropDatabase(ctx context.Context, name string, ifExists, cascade bool) error {
	return c.do(ctx, api.ActionDropDatabase, api.Named{Name: name, IfExists: ifExists, Cascade: cascade}, nil)
}

// ListDatabases lists databases by name.
func (c *Client) ListDatabases(ctx context.Context) ([]api.Database, error) {
	var out api.Databases
	err := c.ask(ctx, api.ActionListDatabases, struct{}{}, &out)
	return out.Databases, err
}

// CreateTable creates a table from a descriptor's JSON.
func (c *Client) CreateTable(ctx context.Context, descriptor json.RawMessage, ifNotExists bool) (api.Table, error) {
	var out api.Table
	err := c.do(ctx, api.ActionCreateTable, api.CreateTable{Descriptor: descriptor, IfNotExists: ifNotExists}, &out)
	return out, err
}

// DropTable drops "database.table".
func (c *Client) DropTable(ctx context.Context, table string, ifExists bool) error {
	return c.do(ctx, api.ActionDropTable, api.Named{Name: table, IfExists: ifExists}, nil)
}

// AlterTable applies changes in order, all or none.
func (c *Client) AlterTable(ctx context.Context, table string, changes json.RawMessage, expected mink.SchemaID) (api.Table, error) {
	var out api.Table
	err := c.do(ctx, api.ActionAlterTable, api.AlterTable{Table: table, Changes: changes, Expected: expected}, &out)
	return out, err
}

// DescribeTable describes "database.table".
func (c *Client) DescribeTable(ctx context.Context, table string) (api.Table, error) {
	var out api.Table
	err := c.ask(ctx, api.ActionDescribeTable, api.Named{Name: table}, &out)
	return out, err
}

// ListTables lists the tables of a database, "" for all.
func (c *Client) ListTables(ctx context.Context, database string) ([]api.Table, error) {
	var out api.Tables
	err := c.ask(ctx, api.ActionListTables, api.Named{Name: database}, &out)
	return out.Tables, err
}

// CreatePartition creates a partition by its values in partition-key order.
func (c *Client) CreatePartition(ctx context.Context, table string, values []string, ifNotExists bool) (api.Partition, error) {
	var out api.Partition
	run := c.do
	if ifNotExists {
		run = c.ask
	}
	err := run(ctx, api.ActionCreatePartition, api.PartitionRequest{Table: table, Values: values, IfNotExists: ifNotExists}, &out)
	return out, err
}

// DropPartition drops a partition and its rows.
func (c *Client) DropPartition(ctx context.Context, table string, values []string, ifExists bool) error {
	return c.do(ctx, api.ActionDropPartition, api.PartitionRequest{Table: table, Values: values, IfExists: ifExists}, nil)
}

// ListPartitions lists partitions with their buckets' leaders. A table without
// partition keys has one.
func (c *Client) ListPartitions(ctx context.Context, table string) ([]api.Partition, error) {
	var out api.Partitions
	err := c.ask(ctx, api.ActionListPartitions, api.Named{Name: table}, &out)
	for _, p := range out.Partitions {
		for _, b := range p.Buckets {
			c.learn(b.Address)
		}
	}
	return out.Partitions, err
}

// ListOffsets answers one position in every bucket: at is "earliest", "latest",
// or a timestamp (RFC 3339, or milliseconds with the suffix "ms").
func (c *Client) ListOffsets(ctx context.Context, table string, partition []string, at string) ([]api.BucketOffset, error) {
	var out api.Offsets
	err := c.ask(ctx, api.ActionListOffsets, api.ListOffsets{Table: table, Partition: partition, At: at}, &out)
	return out.Offsets, err
}

// InitWriter answers a fresh writer id.
func (c *Client) InitWriter(ctx context.Context) (api.Writer, error) {
	var out api.Writer
	err := c.ask(ctx, api.ActionInitWriter, struct{}{}, &out)
	return out, err
}

// CommitProducer stores a named producer's position and offsets together.
// p.Version is the expected version, 0 for any; the answer carries the new one.
func (c *Client) CommitProducer(ctx context.Context, p api.Producer) (api.Producer, error) {
	var out api.Producer
	err := c.do(ctx, api.ActionCommitProducer, p, &out)
	return out, err
}

// GetProducer reads a named producer back; ok is false when it never committed
// or has expired.
func (c *Client) GetProducer(ctx context.Context, name string) (p api.Producer, ok bool, err error) {
	err = c.ask(ctx, api.ActionGetProducer, api.Named{Name: name}, &p)
	if errors.Is(err, mink.ErrNotExist) {
		return api.Producer{}, false, nil
	}
	return p, err == nil, err
}

// DescribeCluster lists the nodes.
func (c *Client) DescribeCluster(ctx context.Context) (api.Cluster, error) {
	var out api.Cluster
	err := c.ask(ctx, api.ActionDescribeCluster, struct{}{}, &out)
	for _, n := range out.Nodes {
		if n.Live {
			c.learn(n.FlightAddress)
		}
	}
	return out, err
}

// Config answers a node's configuration in effect.
func (c *Client) Config(ctx context.Context) (map[string]string, error) {
	var out api.Config
	err := c.do(ctx, api.ActionGetConfig, struct{}{}, &out)
	return out.Values, err
}

// Stats answers a node's figures.
func (c *Client) Stats(ctx context.Context) (api.Stats, error) {
	var out api.Stats
	err := c.do(ctx, api.ActionNodeStats, struct{}{}, &out)
	return out, err
}

// Health asks one node, once, whether it serves.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	var out api.Health
	answer, err := c.actionAt(ctx, c.nodes(0)[0], api.ActionHealth, struct{}{})
	if err != nil {
		return out, err
	}
	return out, decodeAnswer(api.ActionHealth, answer, &out)
}

// AskNodes answers what every live node, or one, says of itself, as some node was told:
// one that does not answer has the reason in its place.
func (c *Client) AskNodes(ctx context.Context, ask api.AskNodes) (api.NodeAnswers, error) {
	var out api.NodeAnswers
	err := c.ask(ctx, api.ActionAskNodes, ask, &out)
	return out, err
}

// Check runs an online consistency check.
func (c *Client) Check(ctx context.Context, deep bool) (api.CheckReport, error) {
	var out api.CheckReport
	err := c.do(ctx, api.ActionCheck, api.CheckRequest{Deep: deep}, &out)
	return out, err
}

// Losses answers which records are lost with the damaged slots of write-ahead
// logs that wait for a person's decision; it changes nothing.
func (c *Client) Losses(ctx context.Context) ([]api.DamagedLog, error) {
	var out api.LossReport
	err := c.do(ctx, api.ActionAcceptLoss, api.AcceptLoss{}, &out)
	return out.Logs, err
}

// AcceptLoss gives up, for good, what the damaged slots of a log held, as Losses
// answered it. mink.ErrConflict: the damage is another one by now.
func (c *Client) AcceptLoss(ctx context.Context, log api.DamagedLog) (api.LossReport, error) {
	in := api.AcceptLoss{Node: log.Node, Epoch: log.Epoch, Confirm: true}
	for _, s := range log.Slots {
		in.Slots = append(in.Slots, s.Slot)
	}
	var out api.LossReport
	err := c.do(ctx, api.ActionAcceptLoss, in, &out)
	return out, err
}

// RemoveNode forgets a node that has ended; its recovery is waited for. With ifExists a
// node that is not registered is no error; nor when it is asked for again because an
// answer was lost.
func (c *Client) RemoveNode(ctx context.Context, id mink.NodeID, ifExists bool) (api.RemovedNode, error) {
	var out api.RemovedNode
	ask := api.RemoveNode{Node: id, IfExists: ifExists}
	err := c.retry(ctx, func(turn int) error {
		answer, err := c.actionAt(ctx, c.nodes(turn)[0], api.ActionRemoveNode, ask)
		if err != nil {
			ask.IfExists = true // it may have been removed, and the answer lost
			return err
		}
		return decodeAnswer(api.ActionRemoveNode, answer, &out)
	})
	return out, err
}

// TierTable asks for a round of tiering now. With wait it returns when the sink has all that
// was acknowledged before the call; TierReport.Error says why it has not.
func (c *Client) TierTable(ctx context.Context, ask api.TierTable) (api.TierReport, error) {
	var out api.TierReport
	err := c.retry(ctx, func(turn int) error {
		answer, err := c.actionAt(ctx, c.nodes(turn)[0], api.ActionTierTable, ask)
		if err != nil {
			return err
		}
		return decodeAnswer(api.ActionTierTable, answer, &out)
	})
	return out, err
}

// LakeSnapshot answers how far a table is in the lake. mink.ErrNotExist: there is no such
// table, or it is not tiered to the lake.
func (c *Client) LakeSnapshot(ctx context.Context, table string) (api.LakeSnapshot, error) {
	var out api.LakeSnapshot
	err := c.do(ctx, api.ActionLakeSnapshot, api.Named{Name: table}, &out)
	return out, err
}

// MaintainTable asks for maintenance of a table at a sink now. With wait it returns when it is
// done; MaintenanceReport.Error says why it failed.
func (c *Client) MaintainTable(ctx context.Context, ask api.MaintainTable) (api.MaintenanceReport, error) {
	var out api.MaintenanceReport
	err := c.retry(ctx, func(turn int) error {
		answer, err := c.actionAt(ctx, c.nodes(turn)[0], api.ActionMaintainTable, ask)
		if err != nil {
			return err
		}
		return decodeAnswer(api.ActionMaintainTable, answer, &out)
	})
	return out, err
}

// Rebalance evens out the buckets over the live nodes; with dryRun it only says what it
// would do. each, when not nil, is called after every move. Broken off (ctx, or an error
// on the way) it leaves a cluster that serves: ask again.
func (c *Client) Rebalance(ctx context.Context, dryRun bool, each func(api.MoveProgress)) (api.RebalanceReport, error) {
	var report *api.RebalanceReport
	err := c.retry(ctx, func(turn int) error {
		conn, err := c.at(c.nodes(turn)[0])
		if err != nil {
			return err
		}
		return c.eachAt(ctx, conn, api.ActionRebalance, api.Rebalance{DryRun: dryRun}, func(body []byte) error {
			var step api.RebalanceStep
			if err := decode(api.ActionRebalance, body, &step); err != nil {
				return err
			}
			if step.Move != nil && each != nil {
				each(*step.Move)
			}
			if step.Report != nil {
				report = step.Report
			}
			return nil
		})
	})
	if err == nil && report == nil {
		err = fmt.Errorf("%s: the node ended its answer without a report: %w", api.ActionRebalance, mink.ErrUnknownOutcome)
	}
	if err != nil {
		return api.RebalanceReport{}, err
	}
	return *report, nil
}
