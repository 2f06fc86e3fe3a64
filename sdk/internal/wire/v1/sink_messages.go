package wire

import (
	"fmt"

	"github.com/mink-project/mink/sdk/mink"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/sink"
)

func encodeDescription(d sink.Description) *pb.SinkDescription {
	return &pb.SinkDescription{
		Name: d.Name, Version: d.Version, Delivery: pb.Delivery(d.Delivery), Changes: pb.Changes(d.Changes),
		StagedSurvives: d.StagedSurvives, SchemaChanges: d.SchemaChanges, ReadBack: d.ReadBack,
	}
}

// decodeDescription turns what this side does not know into 0, which Validate
// refuses.
func decodeDescription(d *pb.SinkDescription) sink.Description {
	small := func(n int32) uint8 {
		if n < 0 || n > 255 {
			return 0
		}
		return uint8(n)
	}
	return sink.Description{
		Name: d.GetName(), Version: d.GetVersion(), Delivery: sink.Delivery(small(int32(d.GetDelivery()))),
		Changes: sink.Changes(small(int32(d.GetChanges()))), StagedSurvives: d.GetStagedSurvives(),
		SchemaChanges: d.GetSchemaChanges(), ReadBack: d.GetReadBack(),
	}
}

func encodeSpec(s sink.TableSpec) (*pb.TableSpec, error) {
	schema, err := encodeTableSchema(s.Schema)
	return &pb.TableSpec{
		Id: int64(s.ID), Database: s.Database, Name: s.Name, Schema: schema, PrimaryKey: s.PrimaryKey,
		PartitionKeys: s.PartitionKeys, BucketKeys: s.BucketKeys, BucketCount: s.BucketCount, Options: s.Options,
	}, err
}

func decodeSpec(s *pb.TableSpec) (sink.TableSpec, error) {
	schema, err := decodeTableSchema(s.GetSchema())
	if err != nil {
		return sink.TableSpec{}, err
	}
	spec := sink.TableSpec{
		ID: mink.TableID(s.GetId()), Database: s.GetDatabase(), Name: s.GetName(), Schema: schema, PrimaryKey: s.GetPrimaryKey(),
		PartitionKeys: s.GetPartitionKeys(), BucketKeys: s.GetBucketKeys(), BucketCount: s.GetBucketCount(), Options: s.GetOptions(),
	}
	return spec, spec.Validate()
}

func encodeTableSchema(s sink.Schema) (*pb.TableSchema, error) {
	data, err := encodeSchema(s.Arrow)
	return &pb.TableSchema{Id: int32(s.ID), ArrowIpc: data}, err
}

func decodeTableSchema(s *pb.TableSchema) (sink.Schema, error) {
	as, err := decodeSchema(s.GetArrowIpc())
	if err != nil {
		return sink.Schema{}, err
	}
	schema := sink.Schema{ID: mink.SchemaID(s.GetId()), Arrow: as}
	return schema, schema.Validate()
}

func encodeBucket(b mink.BucketRef) *pb.BucketRef {
	return &pb.BucketRef{TableId: int64(b.Table), PartitionId: int64(b.Partition), Index: b.Index}
}

func decodeBucket(b *pb.BucketRef) mink.BucketRef {
	return mink.BucketRef{Table: mink.TableID(b.GetTableId()), Partition: mink.PartitionID(b.GetPartitionId()), Index: b.GetIndex()}
}

func encodeCommitted(c sink.Committed) *pb.RecoverResponse {
	resp := &pb.RecoverResponse{Round: string(c.Round), Fence: int64(c.Fence), Snapshot: c.Snapshot}
	for _, b := range c.Buckets() {
		resp.Ends = append(resp.Ends, &pb.BucketEnd{Bucket: encodeBucket(b), End: int64(c.Ends[b])})
	}
	return resp
}

func decodeCommitted(r *pb.RecoverResponse) (sink.Committed, error) {
	c := sink.Committed{
		Round: sink.RoundID(r.GetRound()), Fence: mink.LeaseEpoch(r.GetFence()), Snapshot: r.GetSnapshot(),
		Ends: make(map[mink.BucketRef]mink.Offset, len(r.GetEnds())),
	}
	for _, e := range r.GetEnds() {
		c.Ends[decodeBucket(e.GetBucket())] = mink.Offset(e.GetEnd())
	}
	if len(c.Ends) != len(r.GetEnds()) {
		return sink.Committed{}, protocolError("a bucket stands in the committed round twice")
	}
	if err := c.Validate(); err != nil {
		return sink.Committed{}, protocolError("%v", err)
	}
	return c, nil
}

func encodeChanges(changes []mink.Change) []byte {
	if changes == nil {
		return nil
	}
	out := make([]byte, len(changes))
	for i, c := range changes {
		out[i] = byte(c)
	}
	return out
}

// decodeChanges answers nil for none: whether that is right is the contract's to
// say, which knows the table.
func decodeChanges(data []byte, kinds bool) []mink.Change {
	if len(data) == 0 && !kinds {
		return nil
	}
	out := make([]mink.Change, len(data))
	for i, c := range data {
		out[i] = mink.Change(c)
	}
	return out
}

func encodeCommit(table uint64, req sink.CommitRequest) *pb.CommitRequest {
	out := &pb.CommitRequest{
		Table: table, Staged: req.Staged, Round: string(req.Round), Base: string(req.Base), Fence: int64(req.Fence),
		Ranges: make([]*pb.BucketRange, len(req.Ranges)),
	}
	for i, r := range req.Ranges {
		out.Ranges[i] = &pb.BucketRange{Bucket: encodeBucket(r.Bucket), Start: int64(r.Start), End: int64(r.End)}
	}
	return out
}

func decodeCommit(req *pb.CommitRequest) (sink.CommitRequest, error) {
	out := sink.CommitRequest{
		Staged: req.GetStaged(), Round: sink.RoundID(req.GetRound()), Base: sink.RoundID(req.GetBase()),
		Fence: mink.LeaseEpoch(req.GetFence()), Ranges: make([]sink.Range, len(req.GetRanges())),
	}
	for i, r := range req.GetRanges() {
		out.Ranges[i] = sink.Range{Bucket: decodeBucket(r.GetBucket()), Start: mink.Offset(r.GetStart()), End: mink.Offset(r.GetEnd())}
	}
	return out, out.Validate()
}

// sinkCall names a call in an error.
func sinkCall(op string, spec sink.TableSpec, round sink.RoundID, err error) error {
	switch {
	case err == nil:
		return nil
	case round != "":
		return fmt.Errorf("%s round %s of %s: %w", op, round, spec.FullName(), err)
	}
	return fmt.Errorf("%s %s: %w", op, spec.FullName(), err)
}
