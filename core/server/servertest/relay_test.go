package servertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// nativePut is a native DoPut of one batch into one bucket, by a client that does not
// look who leads it.
type nativePut struct {
	flight.FlightService_DoPutClient
}

func (g *generic) native(to api.Append, sequence int32, first, n int64) nativePut {
	g.t.Helper()
	to.SchemaID = 1
	stream, err := g.DoPut(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	out := flight.NewRecordWriter(stream, ipc.WithSchema(idSchema))
	out.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Command{Append: &to})})
	rec := idRows(first, n)
	defer rec.Release()
	if err := out.WriteWithAppMetadata(rec, api.JSON(api.AppendMetadata{Sequence: sequence})); err != nil {
		g.t.Fatal(err)
	}
	return nativePut{stream}
}

// result is the batch's acknowledgement, or the error as it came.
func (p nativePut) result() (res api.AppendResult, err error) {
	r, err := p.Recv()
	if err != nil {
		return res, err
	}
	return res, json.Unmarshal(r.AppMetadata, &res)
}

// reasonOf is the class of an error with what it has to say beside its text.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return fmt.Sprintf("%s %v", info.Reason, info.Metadata)
		}
	}
	return "no reason"
}

// What a leader refuses is refused in its words by the node that asked it: a client that
// is told to try again, where it was replaced for good, would do so for ever.
func TestARelayedRefusalIsTheLeaders(t *testing.T) {
	c := servertest.Start(t, 2, steady())
	bucket := table(t, c.Client(t), "t", 2)[0]
	for id := 1; id <= 2; id++ {
		g := at(t, c, id)
		var w api.Writer
		if err := g.action(t.Context(), api.ActionInitWriter, struct{}{}, &w); err != nil {
			t.Fatal(err)
		}
		to := api.Append{Bucket: bucket, WriterID: w.WriterID, WriterEpoch: 1}
		if _, err := g.native(to, 0, 0, 1).result(); err != nil {
			t.Fatalf("node %d: %v", id, err)
		}
		if _, err := g.native(to, 7, 0, 1).result(); reasonOf(err) != "OUT_OF_ORDER map[next_sequence:1]" {
			t.Errorf("node %d (%d leads), a batch ahead of its time: %s: %v", id, c.Leader(bucket), reasonOf(err), err)
		}
		to.WriterEpoch = 0
		if _, err := g.native(to, 0, 0, 1).result(); reasonOf(err) != "FENCED map[]" {
			t.Errorf("node %d (%d leads), a writer that was replaced: %s: %v", id, c.Leader(bucket), reasonOf(err), err)
		}
	}
}

// A batch without a writer id that was on its way to the leader when the connection broke
// may be written: who sends it again, as UNAVAILABLE says, doubles it.
func TestARelayedBatchOfUnknownFate(t *testing.T) {
	c := servertest.Start(t, 2, steady())
	cl := c.Client(t)
	for _, bucket := range table(t, cl, "t", 2) {
		leader := c.Leader(bucket)
		var w api.Writer
		if err := at(t, c, leader).action(t.Context(), api.ActionInitWriter, struct{}{}, &w); err != nil {
			t.Fatal(err)
		}
		inFlight := func(n float64) bool {
			there := at(t, c, leader)
			return servertest.Wait(t.Context(), func() bool {
				var s api.Stats
				return there.action(t.Context(), api.ActionNodeStats, struct{}{}, &s) == nil && s.Figures["mink_wal_in_flight_objects"] == n
			})
		}
		for _, x := range []struct {
			writer mink.WriterID
			want   error
		}{{0, mink.ErrUnknownOutcome}, {w.WriterID, mink.ErrUnavailable}} {
			c.PauseStore(leader)
			p := at(t, c, 3-leader).native(api.Append{Bucket: bucket, WriterID: x.writer}, 0, 0, 1)
			if !inFlight(1) {
				t.Fatal("the leader was sent nothing")
			}
			c.Disconnect(leader)
			if _, err := p.result(); !errors.Is(client.FromStatus("", err), x.want) {
				t.Errorf("writer %d: %v, want %v", x.writer, err, x.want)
			}
			c.ResumeStore(leader)
			if !inFlight(0) {
				t.Fatal("what the leader was sent does not come to the store")
			}
		}
	}
}

// A node that hears nothing of the metadata any more may have been replaced: it does not
// say where its logs end, when others may have gone on with them.
func TestADeposedLeaderDoesNotSayWhereTheLogEnds(t *testing.T) {
	c := servertest.Start(t, 2, servertest.LeaseTTL(3*time.Second))
	cl := c.Client(t)
	bucket := table(t, cl, "t", 1)[0]
	old := c.Leader(bucket)
	append10 := func(id int, first int64) bool {
		return servertest.Wait(t.Context(), func() bool {
			_, err := at(t, c, id).native(api.Append{Bucket: bucket}, 0, first, 10).result()
			return err == nil
		})
	}
	if !append10(old, 0) {
		t.Fatal("the leader takes nothing")
	}
	c.PauseMetadata(old)
	if !servertest.Wait(t.Context(), func() bool { return c.Leader(bucket) == 3-old }) || !append10(3-old, 10) {
		t.Fatal("nobody takes the bucket over")
	}
	g := at(t, c, old)
	for _, position := range []string{"latest", "99999999999999ms"} {
		var o api.Offsets
		if err := g.action(t.Context(), api.ActionListOffsets, api.ListOffsets{Table: "db.t", At: position}, &o); err != nil {
			continue
		}
		if b := o.Offsets[0]; b.Error == "" && b.Offset != 20 {
			t.Errorf("%s: the deposed leader says %d, the log ends at 20", position, b.Offset)
		}
	}
	info, err := g.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"db", "t"}})
	if err == nil && info.TotalRecords >= 0 && info.TotalRecords != 20 {
		t.Errorf("the deposed leader announces %d records, there are 20", info.TotalRecords)
	}
	c.ResumeMetadata(old)
	c.WaitServing(t)
}

// Clients that leave calls open at a node which does not lead their buckets take no more
// of its connection to the leader than there is for them: the others go on.
func TestOpenRelaysLeaveRoomForOthers(t *testing.T) {
	c := servertest.Start(t, 2, steady())
	cl := c.Client(t)
	buckets := table(t, cl, "t", 2)
	leader := c.Leader(buckets[0])
	asked := 3 - leader
	open, throttled := 0, 0
	for range 3 { // connections of clients
		g := at(t, c, asked)
		for range 400 {
			x, err := g.DoExchange(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d := &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Exchange{Scan: &api.Scan{Bucket: buckets[0]}})}
			if err := x.Send(&flight.FlightData{FlightDescriptor: d}); err != nil {
				t.Fatal(err)
			}
			if _, err := x.Recv(); errors.Is(client.FromStatus("", err), mink.ErrThrottled) {
				throttled++
			} else if err != nil {
				t.Fatal(err)
			} else {
				open++
			}
		}
	}
	t.Logf("%d tails are open, %d were refused", open, throttled)
	ctx, cancel := context.WithTimeout(t.Context(), waitLong)
	defer cancel()
	g := at(t, c, asked)
	var o api.Offsets
	if err := g.action(ctx, api.ActionListOffsets, api.ListOffsets{Table: "db.t", At: "latest"}, &o); err != nil {
		t.Fatalf("offsets through node %d: %v", asked, err)
	}
	p := g.put(api.Command{Table: "db.t"}, idSchema)
	p.write(idRows(0, 50))
	if n := p.close(); n != 50 {
		t.Errorf("%d of 50 rows are acknowledged", n)
	}
}

// What the coordinator did for a client of another node, that node knows when it says so.
func TestActionsOfTheCoordinatorAreReadBack(t *testing.T) {
	c := servertest.Start(t, 3, steady())
	asked := c.LeaseHolder()%3 + 1
	c.Stop(asked)
	buckets := table(t, c.Client(t, c.LeaseHolder()), "t", 6)
	c.Restart(asked)
	c.WaitServing(t)
	g := at(t, c, asked)
	c.PauseMetadata(asked)
	done := make(chan error, 1)
	go func() {
		s, err := g.DoAction(t.Context(), &flight.Action{Type: api.ActionRebalance, Body: api.JSON(api.Rebalance{})})
		for err == nil {
			_, err = s.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		done <- err
	}()
	moved := func() (n int) {
		for _, b := range buckets {
			if c.Leader(b) == asked {
				n++
			}
		}
		return n
	}
	if !servertest.Wait(t.Context(), func() bool { return moved() == 2 }) {
		t.Fatalf("%d buckets moved", moved())
	}
	select {
	case err := <-done:
		done <- err // which is early
	case <-time.After(time.Second):
		c.ResumeMetadata(asked)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var parts api.Partitions
	if err := g.action(t.Context(), api.ActionListPartitions, api.Named{Name: "db.t"}, &parts); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, b := range parts.Partitions[0].Buckets {
		if int(b.Leader) == asked {
			n++
		}
	}
	if n != 2 {
		t.Errorf("after the rebalance that node %d asked for, it knows of %d buckets of its own, want 2", asked, n)
	}
	c.ResumeMetadata(asked)
}
