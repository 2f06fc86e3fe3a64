package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// lakeLoad is what the tables of a load in the lake hold beside what the load writes.
type lakeLoad struct {
	outside []string // values that another engine appended to the lake table of busyTopic
	again   int      // how often againTable was made; 0: there is none
	rows    []string // of againTable
}

// againTable is dropped and made again, (generation, number).
const againTable = "busy.again"

// lakeOptions are flags that put a table into the lake.
func (c *trio) lakeOptions(flag, prefix string) []string {
	if c.freshness == 0 {
		return nil
	}
	return []string{flag, prefix + "lake=true", flag, prefix + "lake_freshness=" + c.freshness.String()}
}

// lakeContent is a table of the load in the lake: the columns that tell its rows apart, and
// their texts, joined by slashes, of each row that must be there once.
type lakeContent struct {
	table   string
	columns []string
	want    []string
}

// inLake are the tables of the load in the lake with what they must hold now that nothing
// is written.
func (l *load) inLake() []lakeContent {
	l.t.Helper()
	topic := lakeContent{"kafka." + busyTopic, []string{"value"}, slices.Clone(l.lake.outside)}
	for name, list := range l.kafka {
		for p, s := range list {
			for seq := range s.snapshot(l.t) {
				topic.want = append(topic.want, fmt.Sprintf("%s/%d/%d", name, p, seq))
			}
		}
	}
	numbered := func(table string, list []*series) lakeContent {
		c := lakeContent{table: table, columns: []string{"part", "seq"}}
		for part, s := range list {
			for seq := range s.snapshot(l.t) {
				c.want = append(c.want, fmt.Sprintf("%d/%d", part, seq))
			}
		}
		return c
	}
	stock := lakeContent{table: busyStock, columns: []string{"region", "id", "n", "kept"}}
	for _, k := range l.stock {
		if n, kept, there := k.want(); there {
			stock.want = append(stock.want, fmt.Sprintf("%s/%d/%d/%d", k.key.Region, k.key.ID, n, kept))
		}
	}
	out := []lakeContent{topic, numbered("kafka."+typedTopic, l.typed), numbered(busyRows, l.rows), stock}
	if l.lake.again > 0 {
		out = append(out, lakeContent{againTable, []string{"generation", "number"}, l.lake.rows})
	}
	return out
}

// differs says how what was found differs from what must be there; "": not at all.
func (c lakeContent) differs(got []string) string {
	counts := map[string]int{}
	for _, w := range c.want {
		counts[w]++
	}
	for _, g := range got {
		counts[g]--
	}
	var missing, extra []string
	for row, n := range counts {
		switch {
		case n > 0:
			missing = append(missing, row)
		case n < 0:
			extra = append(extra, row)
		}
	}
	if len(missing)+len(extra) == 0 {
		return ""
	}
	slices.Sort(missing)
	slices.Sort(extra)
	return fmt.Sprintf("%s: %d rows, want %d: %d are missing (%v), %d are too many (%v)", c.table, len(got), len(c.want),
		len(missing), missing[:min(len(missing), 8)], len(extra), extra[:min(len(extra), 8)])
}

// union reads a table in mode union, or lake.
func (l *load) union(ctx context.Context, c lakeContent, lakeOnly bool) (rows []string, err error) {
	for b, err := range l.cl.ScanUnion(ctx, client.UnionRequest{Table: c.table, Bucket: -1, Columns: c.columns, LakeOnly: lakeOnly}) {
		if err != nil {
			return nil, err
		}
		for i := range int(b.Record.NumRows()) {
			rows = append(rows, textOfRow(b.Record, c.columns, i))
		}
	}
	return rows, nil
}

func textOfRow(rec arrow.RecordBatch, columns []string, row int) string {
	texts := make([]string, len(columns))
	for i, name := range columns {
		switch a := rec.Column(rec.Schema().FieldIndices(name)[0]).(type) {
		case *array.Binary:
			texts[i] = string(a.Value(row))
		default:
			texts[i] = a.ValueStr(row)
		}
	}
	return strings.Join(texts, "/")
}

// unionEquals requires that a read finds just the rows of c. A read that broke off is begun
// anew.
func (l *load) unionEquals(what string, c lakeContent, lakeOnly bool) {
	l.t.Helper()
	mode := map[bool]string{false: "union", true: "lake"}[lakeOnly]
	for deadline := time.Now().Add(soon); ; time.Sleep(200 * time.Millisecond) {
		got, err := l.union(l.t.Context(), c, lakeOnly)
		if errors.Is(err, mink.ErrUnavailable) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			l.t.Fatalf("%s: mode %s: %v", what, mode, err)
		}
		if text := c.differs(got); text != "" {
			l.t.Fatalf("%s: mode %s: %s", what, mode, text)
		}
		return
	}
}

// verifyLake checks, while nothing is written: each acknowledged row is there once in a union
// read, whatever of it is in the lake by now; and soon in the lake, as Mink and as another
// engine read it. A primary-key table has the latest row of each key.
func (l *load) verifyLake(what string) {
	l.t.Helper()
	if l.c.freshness == 0 {
		return
	}
	all := l.inLake()
	for _, c := range all {
		l.unionEquals(what, c, false)
	}
	l.tieredAgain(what)
	for _, c := range all {
		l.unionEquals(what, c, true)
		l.unionEquals(what, c, false)
	}
	l.othersEqual(what, all)
}

// othersEqual lets PyIceberg read the tables through a node's /iceberg, where it is
// installed: make chaos-lake has it.
func (l *load) othersEqual(what string, all []lakeContent) {
	l.t.Helper()
	if os.Getenv("MINK_TEST_LAKE_PYTHON") == "" {
		return
	}
	var commands [][]string
	for _, c := range all {
		commands = append(commands, append([]string{"rows", c.table}, c.columns...))
	}
	for i, got := range l.iceberg(commands...) {
		if text := all[i].differs(got); text != "" {
			l.t.Fatalf("%s: PyIceberg: %s", what, text)
		}
	}
}

// iceberg runs commands of testdata/lake.py against a node's /iceberg and answers the lines
// that each prints.
func (l *load) iceberg(commands ...[]string) [][]string {
	l.t.Helper()
	args := []string{filepath.Join("testdata", "lake.py"), "http://" + l.awake().http + "/iceberg", cloudtest.AccessKeyID, cloudtest.SecretAccessKey}
	for i, c := range commands {
		if i > 0 {
			args = append(args, ",")
		}
		args = append(args, c...)
	}
	out := make([][]string, 1)
	for line := range strings.Lines(string(run(l.t, nil, lakePython(l.t), args...))) {
		if line == ",\n" {
			out = append(out, nil)
			continue
		}
		last := len(out) - 1
		out[last] = append(out[last], strings.TrimSuffix(line, "\n"))
	}
	if out = out[:len(out)-1]; len(out) != len(commands) {
		l.t.Fatalf("%d commands, %d answers", len(commands), len(out))
	}
	return out
}

// awake is a node that runs and does not stand still.
func (l *load) awake() *member {
	l.t.Helper()
	for _, m := range l.c.nodes {
		if m.runs() && !m.paused {
			return m
		}
	}
	l.t.Fatal("no node runs")
	return nil
}

// tieredAgain waits until the lake has, of every table, what the logs have now: nothing hangs.
func (l *load) tieredAgain(what string) {
	l.t.Helper()
	deadline := time.Now().Add(soon)
	ends := map[string][]api.BucketOffset{}
	var last error
	for _, table := range l.lakeTables() {
		for done := false; !done; {
			list, err := l.cl.ListOffsets(l.t.Context(), table, nil, "latest")
			if err == nil && !slices.ContainsFunc(list, func(o api.BucketOffset) bool { return o.Error != "" }) {
				ends[table], done = list, true
			} else if time.Now().After(deadline) {
				l.t.Fatalf("%s: ends of %s: %v %v", what, table, err, list)
			}
		}
	}
	for table, list := range ends {
		for {
			var have map[mink.BucketRef]mink.Offset
			if have, last = l.awake().lakeEnds(l.t.Context(), table); last == nil {
				i := slices.IndexFunc(list, func(o api.BucketOffset) bool { return have[o.Bucket] < o.Offset })
				if i < 0 {
					break
				}
				last = fmt.Errorf("the lake has bucket %s up to offset %d, its log ended at %d", list[i].Bucket, have[list[i].Bucket], list[i].Offset)
			}
			if time.Now().After(deadline) {
				l.t.Fatalf("%s: table %s is not tiered within %s: %v\n%s", what, table, soon, last, l.tieringStates())
			}
			pause(l.t.Context(), 200*time.Millisecond)
		}
	}
}

func (l *load) lakeTables() []string {
	out := []string{"kafka." + busyTopic, "kafka." + typedTopic, busyRows, busyStock}
	if l.lake.again > 0 {
		out = append(out, againTable)
	}
	return out
}

// tieringStates is what the nodes say of tiering.
func (l *load) tieringStates() string {
	var out bytes.Buffer
	answers, err := l.cl.AskNodes(l.t.Context(), api.AskNodes{About: api.ActionNodeStats})
	if err != nil {
		return err.Error()
	}
	for _, a := range answers.Nodes {
		if a.Stats == nil {
			continue
		}
		for _, s := range a.Stats.Tiering {
			fmt.Fprintf(&out, "node %d: %+v\n", a.Node, s)
		}
	}
	return out.String()
}
