package servertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

const waitLong = 5 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func table(t testing.TB, c *client.Client, name string, buckets int) []mink.BucketRef {
	t.Helper()
	if err := c.CreateDatabase(t.Context(), "db", true); err != nil {
		t.Fatal(err)
	}
	d := fmt.Sprintf(`{"database":"db","table":%q,"schema":{"columns":[{"name":"id","type":"BIGINT NOT NULL"}]},"bucket_count":%d,"bucket_keys":["id"]}`, name, buckets)
	if _, err := c.CreateTable(t.Context(), json.RawMessage(d), false); err != nil {
		t.Fatal(err)
	}
	parts, err := c.ListPartitions(t.Context(), "db."+name)
	if err != nil || len(parts) != 1 {
		t.Fatalf("partitions %v, %v", parts, err)
	}
	var out []mink.BucketRef
	for _, b := range parts[0].Buckets {
		out = append(out, b.Bucket)
	}
	return out
}

// rows writes ids first .. first+n-1 to db.t and waits until they are durable.
func rows(t *testing.T, w *client.Writer, first, n int64) {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, w.Schema())
	defer b.Release()
	for id := first; id < first+n; id++ {
		b.Field(0).(*array.Int64Builder).Append(id)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	a, err := w.Append(t.Context(), rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Buckets go round the nodes, and the next table starts one node later.
func TestBucketsGoRound(t *testing.T) {
	c := servertest.Start(t, 3)
	cl := c.Client(t)
	var firsts []int
	for _, name := range []string{"t", "u"} {
		var leaders []int
		count := map[int]int{}
		for _, b := range table(t, cl, name, 12) {
			leaders = append(leaders, c.Leader(b))
			count[c.Leader(b)]++
		}
		if count[1] != 4 || count[2] != 4 || count[3] != 4 {
			t.Errorf("leaders of %s: %v", name, leaders)
		}
		firsts = append(firsts, leaders[0])
	}
	if firsts[1] != firsts[0]%3+1 {
		t.Errorf("the tables start at nodes %v", firsts)
	}
}

// A partition that a write creates is placed as a table is: its buckets go round, from one
// node later than those before.
func TestPartitionsGoRound(t *testing.T) {
	c := servertest.Start(t, 3)
	cl := c.Client(t)
	if err := cl.CreateDatabase(t.Context(), "db", true); err != nil {
		t.Fatal(err)
	}
	d := `{"database":"db","table":"p","schema":{"columns":[{"name":"id","type":"BIGINT NOT NULL"},{"name":"day","type":"STRING NOT NULL"}]},"partition_keys":["day"],"bucket_count":12}`
	if _, err := cl.CreateTable(t.Context(), json.RawMessage(d), false); err != nil {
		t.Fatal(err)
	}
	w, err := cl.NewWriter(t.Context(), "db.p", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	var firsts []int
	for _, day := range []string{"mon", "tue", "wed", "thu"} {
		b := array.NewRecordBuilder(memory.DefaultAllocator, w.Schema())
		b.Field(0).(*array.Int64Builder).Append(1)
		b.Field(1).(*array.StringBuilder).Append(day)
		rec := b.NewRecordBatch()
		a, err := w.Append(t.Context(), rec)
		rec.Release()
		b.Release()
		if err == nil {
			err = a.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		parts, err := cl.ListPartitions(t.Context(), "db.p")
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(parts, func(p api.Partition) bool { return slices.Equal(p.Values, []string{day}) })
		if len(parts) != len(firsts)+1 || at < 0 {
			t.Fatalf("partitions after a row of %s: %v", day, parts)
		}
		count := map[int]int{}
		for _, b := range parts[at].Buckets {
			count[c.Leader(b.Bucket)]++
		}
		if count[1] != 4 || count[2] != 4 || count[3] != 4 {
			t.Errorf("leaders of %s: %v", day, count)
		}
		firsts = append(firsts, c.Leader(parts[at].Buckets[0].Bucket))
	}
	for i := range len(firsts) - 1 {
		if firsts[i+1] != firsts[i]%3+1 {
			t.Errorf("the partitions start at nodes %v", firsts)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A killed node's buckets go to others with every acknowledged row; a stopped one
// hands over; a restarted one takes part again.
func TestKilledStoppedRestarted(t *testing.T) {
	c := servertest.Start(t, 3)
	cl := c.Client(t)
	buckets := table(t, cl, "t", 6)
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	rows(t, w, 0, 100)
	c.Kill(c.LeaseHolder())
	rows(t, w, 100, 100)
	c.WaitServing(t)
	for _, b := range buckets {
		if c.Leader(b) == 0 {
			t.Errorf("bucket %s has no leader", b)
		}
	}
	for id := 1; id <= 3; id++ {
		c.Restart(id)
	}
	c.WaitServing(t)
	rows(t, w, 200, 100)
	c.Stop(2)
	rows(t, w, 300, 100)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scanned(t, cl); !slices.Equal(got, upTo(400)) {
		t.Errorf("%d rows: %v", len(got), got)
	}
}

// A paused node answers nothing and is taken for dead; it goes on as another epoch.
func TestPaused(t *testing.T) {
	c := servertest.Start(t, 2)
	cl := c.Client(t, 1)
	buckets := table(t, cl, "t", 2)
	before, _ := c.View().Node(2)
	c.Pause(2)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Client(t, 2).Health(ctx); err == nil {
		t.Error("a paused node answers")
	}
	c.WaitServing(t)
	for _, b := range buckets {
		if c.Leader(b) != 1 {
			t.Errorf("bucket %s is led by node %d", b, c.Leader(b))
		}
	}
	c.Resume(2)
	c.WaitServing(t)
	if after, _ := c.View().Node(2); after.Epoch == before.Epoch {
		t.Errorf("node 2 goes on as epoch %d, which was sealed", after.Epoch)
	}
	if _, err := c.Client(t, 2).Health(t.Context()); err != nil {
		t.Error(err)
	}
}
