package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/help.txt")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run is one command line.
func run(t *testing.T, in string, args ...string) (code int, out, errOut string) {
	t.Helper()
	t.Setenv("MINK_BOOTSTRAP", "")
	var o, e bytes.Buffer
	a := &app{in: strings.NewReader(in), out: &o, errOut: &e}
	code = a.execute(t.Context(), args)
	return code, o.String(), e.String()
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string // in standard error
	}{
		{"nonsense", 2, `unknown command "nonsense" for mink`},
		{"tabel", 2, "did you mean table?"},
		{"db lis", 2, "did you mean list?"},
		{"read a.b --fromat csv", 2, "did you mean --format?"},
		{"read a.b --zzz", 2, "see mink read --help"},
		{"--nonsense", 2, "unknown flag"},
		{"db create", 2, "wants a name, got 0 arguments"},
		{"table describe shop", 2, "want DATABASE.TABLE"},
		{"table create shop.t -C id", 2, "NAME TYPE"},
		{"table alter shop.t", 2, "nothing to alter"},
		{"partition create shop.t", 2, "KEY=VALUE"},
		{"read shop.t --format xml", 2, "want json, csv, table or arrow"},
		{"read shop.t --mode lake --follow", 2, "--follow is for"},
		{"read shop.t --mode log --filter a=1", 2, "--filter is for"},
		{"read shop.t --mode latest", 2, "want one of log, snapshot, union, lake"},
		{"read shop.t --mode log --from-key 1", 2, "are for --mode snapshot"},
		{"read shop.t --mode snapshot --from 1", 2, "--from is for --mode log"},
		{"read shop.t -f --to-key 1", 2, "not with --follow"},
		{"read shop.t --bucket x", 2, `--bucket "x": want a whole number`},
		{"read shop.t --bucket -2", 2, "--bucket -2"},
		{"read shop.t -n -1", 2, "--limit -1"},
		{"read shop.t -f --format table", 2, "with --follow take json or csv"},
		{"read shop.t --follow=maybe", 2, `--follow "maybe": want true or false`},
		{"bench shop.t --bucket-count 5000000000", 2, `--bucket-count "5000000000": want a whole number`},
		{"bench shop.t --duration soon", 2, `--duration "soon": want a duration such as`},
		{"table create shop.t --descriptor x.json -C a", 2, "--column cannot stand beside it"},
		{"table create shop.t --descriptor", 2, "flag needs an argument"},
		{"write", 2, "wants DATABASE.TABLE"},
		{"write shop.t --format xml", 2, "want json, csv, arrow or parquet"},
		{"write shop.t --batch-rows 0", 2, "1 or more"},
		{"bench shop.t --rows 0", 2, "1 or more"},
		{"-b ftp://x db list", 2, `scheme "ftp"`},
		{"plugin new door x", 2, `kind "door", only of: sink, objstore`},
		{"plugin new sink ../x", 2, "name"},
		{"plugin new sink", 2, "a kind and a name"},
		{"plugin new sink x --sdk /nowhere", 2, "is no checkout of Mink"},
		{"plugin test ./nowhere", 1, "nowhere"},
		{"plugin test ./nowhere -o dir", 2, "want NAME=VALUE"},
		{"plugin test ./nowhere --run (", 2, "--run"},
		{"plugin install", 2, "a file or directory"},
		{"plugin info nowhere --plugin-dir /nowhere", 1, "mink plugin list"},
		{"serve extra", 2, "takes no arguments"},
		{"serve --node-id 0", 2, "node_id is 0"},
		{"serve --listen 0.0.0.0:0", 2, "--insecure"},
		{"serve --config nowhere.toml", 2, "nowhere.toml"},
		{"-b 127.0.0.1:1 --retry-for 10ms db list", 1, "`mink serve` starts one"},
	} {
		code, out, errOut := run(t, "", strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("mink %s: exit code %d, want %d; error %q, want %q; output %q", c.args, code, c.code, errOut, c.want, out)
		}
	}
}

// TestHelp keeps every command's help in one file to read.
func TestHelp(t *testing.T) {
	var b strings.Builder
	var visit func(path []string, cmd *cobra.Command)
	visit = func(path []string, cmd *cobra.Command) {
		code, out, errOut := run(t, "", append(path, "--help")...)
		if code != 0 || errOut != "" {
			t.Errorf("mink %s --help: exit code %d, %s", strings.Join(path, " "), code, errOut)
		}
		b.WriteString("$ mink " + strings.Join(append(path, "--help"), " ") + "\n" + out + "\n")
		for _, c := range cmd.Commands() {
			if c.Name() != "completion" && c.Name() != "help" {
				visit(append(path[:len(path):len(path)], c.Name()), c)
			}
		}
	}
	visit(nil, newRoot(&app{}))
	golden := filepath.Join("testdata", "help.txt")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != b.String() {
		t.Errorf("testdata/help.txt is behind (%v): go test ./cmd/mink -run Help -rewrite, and read the difference", err)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, out, errOut := run(t, "", "completion", shell); code != 0 || !strings.Contains(out, "mink") || errOut != "" {
			t.Errorf("completion %s: exit code %d, %d bytes, %s", shell, code, len(out), errOut)
		}
	}
	if _, out, _ := run(t, "", "__complete", "read", "--format", ""); !strings.HasPrefix(out, "json\ncsv\ntable\narrow\n") {
		t.Errorf("values of --format: %q", out)
	}
	if code, out, _ := run(t, "", "__complete", "-b", "127.0.0.1:1", "--retry-for", "10ms", "read", ""); code != 0 || !strings.HasPrefix(out, ":4") {
		t.Errorf("tables without a node: exit code %d, %q", code, out)
	}
}

// schemaOf makes an Arrow schema of "NAME TYPE" columns.
func schemaOf(t *testing.T, columns ...string) *arrow.Schema {
	t.Helper()
	var s schema.Schema
	for _, text := range columns {
		c, err := column(text)
		if err != nil {
			t.Fatal(err)
		}
		s.Columns = append(s.Columns, c)
	}
	return s.Arrow()
}

// everyType has a column of each type.
var everyType = []string{
	"bo BOOLEAN", "ti TINYINT", "si SMALLINT", "i INT", "b BIGINT", "f FLOAT", "d DOUBLE", "de DECIMAL(10,2)",
	"c CHAR(3)", "s STRING", "bi BINARY(3)", "by BYTES", "da DATE", "t0 TIME(0)", "t9 TIME(9)", "ts TIMESTAMP(6)",
	"tz TIMESTAMP_LTZ(9)", "a ARRAY<INT>", "m MAP<STRING, BIGINT>", "r ROW<x INT, y STRING>", "`odd name` INT",
}

const everyTypeRow = `{"bo":true,"ti":1,"si":2,"i":3,"b":9223372036854775807,"f":1.5,"d":2.5,"de":"12.30","c":"ab","s":"x\ny","bi":"AAEC","by":"AAEC",` +
	`"da":"2026-01-31","t0":"10:00:00","t9":"10:00:00.123456789","ts":"2026-01-31T10:00:00.123456","tz":"2026-01-31T10:00:00.123456789Z",` +
	`"a":[1,null],"m":[{"key":"k","value":1}],"r":{"x":1,"y":"a, \"z\""},"odd name":-1}` + "\n"

// TestFormats: what read prints, write reads back, for every type and null.
func TestFormats(t *testing.T) {
	s := schemaOf(t, everyType...)
	printed := func(format string, in rowReader) string {
		t.Helper()
		defer in.Release()
		var out bytes.Buffer
		a := &app{out: &out}
		var p rowPrinter
		for in.Next() {
			if p == nil {
				p = a.printer(format, in.RecordBatch().Schema())
			}
			if err := p.print(in.RecordBatch()); err != nil {
				t.Fatal(err)
			}
		}
		if err := in.Err(); err != nil {
			t.Fatal(err)
		}
		if err := p.close(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	open := func(format, text string) rowReader {
		t.Helper()
		r, err := openRows(t.Context(), strings.NewReader(text), format, s, 2)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	rows := everyTypeRow + "{}\n" + everyTypeRow
	again := printed("json", open("json", rows))
	if lines := strings.Split(again, "\n"); len(lines) != 4 || lines[0]+"\n" != everyTypeRow || lines[2]+"\n" != everyTypeRow {
		t.Errorf("JSON changed:\n%swant\n%s", again, everyTypeRow)
	}
	for _, format := range []string{"csv", "arrow"} {
		text := printed(format, open("json", rows))
		if got := printed("json", open(format, text)); got != again {
			t.Errorf("through %s:\n%swant\n%s%s", format, got, again, text)
		}
	}
	if table := printed("table", open("json", rows)); !strings.Contains(table, "odd name") || !strings.Contains(table, "NULL") {
		t.Errorf("table:\n%s", table)
	}
}

func TestBadRows(t *testing.T) {
	s := schemaOf(t, "id BIGINT NOT NULL", "name STRING", "at TIMESTAMP(3)", "tag STRING NOT NULL")
	for _, c := range []struct{ format, in, want string }{
		{"json", `{"id":1,"tag":"a"}` + "\n" + `{"id":2,"tag":"a"}` + "\n" + `{"id":"x","tag":"a"}`, `row 3: column "id" is BIGINT NOT NULL: cannot read "x"`},
		{"json", `{"id":1,"tag":"a","nmae":"x"}`, `row 1: the table has no column "nmae"; it has id, name, at, tag`},
		{"json", `{"id":1}`, `row 1: column "tag" is NOT NULL and has no value`},
		{"json", `{"id":1,"tag":null}`, `row 1: column "tag" is NOT NULL`},
		{"json", `{"id":1,"tag":"a","at":"yesterday"}`, `column "at" is TIMESTAMP(3): cannot read "yesterday"`},
		{"json", `{"id":1.5,"tag":"a"}`, `column "id"`},
		{"json", `{"id":1,"tag":"a"`, `row 1: want one JSON object a line`},
		{"json", `[{"id":1}]`, `row 1: want one JSON object a line`},
		{"json", `null`, `row 1: want one JSON object a line`},
		{"csv", "", "no header line"},
		{"csv", "id,nmae\n1,x\n", `header: the table has no column "nmae"`},
		{"csv", "id,id,tag\n1,1,x\n", `header: column "id" occurs twice`},
		{"csv", "id\n1\n", `header: column "tag" is NOT NULL and absent`},
		{"csv", "id,tag\n1,a\n2,a\n\"x\ny\",a\n", `line 4: column "id" is BIGINT NOT NULL: cannot read "x\ny"`},
		{"csv", "id,tag\n,a\n", `line 2: column "id" is NOT NULL and has no value`},
		{"csv", "id,tag\n1\n", "wrong number of fields"},
	} {
		err := readAll(t, c.format, c.in, s)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: got %v, want %s", c.format, c.in, err, c.want)
		}
	}
	// An empty field is an empty text where null cannot be; a byte order mark is no name.
	if err := readAll(t, "csv", "\ufeffid,tag\n1,\n", s); err != nil {
		t.Error(err)
	}
}

func readAll(t *testing.T, format, in string, s *arrow.Schema) error {
	t.Helper()
	r, err := openRows(t.Context(), strings.NewReader(in), format, s, 2)
	if err != nil {
		return err
	}
	defer r.Release()
	for r.Next() { // only the end counts
		_ = r.RecordBatch()
	}
	return r.Err()
}

// startNode runs a node in this process and answers its Flight address.
func startNode(t *testing.T) string {
	t.Helper()
	at, _, err := tryNode(t, func(c *server.Config) { c.DataDir = t.TempDir() })
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// tryNode runs a node until stop is called or the test ends, or answers why it does
// not serve.
func tryNode(t *testing.T, change func(*server.Config)) (at string, stop func(), err error) {
	t.Helper()
	cfg := server.DefaultConfig()
	cfg.Listen, cfg.KafkaListen, cfg.HTTPListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	change(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan server.Addresses, 1), make(chan error, 1)
	go func() {
		done <- server.Run(ctx, cfg, slog.New(slog.DiscardHandler), func(at server.Ready) { ready <- at.Addresses })
	}()
	select {
	case at := <-ready:
		stop := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("node: %v", err)
			}
		})
		t.Cleanup(stop)
		return at.Flight, stop, nil
	case err := <-done:
		cancel()
		if err == nil {
			err = errors.New("it ended at once")
		}
		return "", nil, err
	}
}

// TestCommands goes through the client's commands against a node.
func TestCommands(t *testing.T) {
	at := startNode(t)
	ok := func(in string, args ...string) string {
		t.Helper()
		code, out, errOut := run(t, in, append([]string{"-b", at}, args...)...)
		if code != 0 {
			t.Fatalf("mink %s: exit code %d: %s", strings.Join(args, " "), code, errOut)
		}
		return out
	}
	fails := func(want string, in string, args ...string) {
		t.Helper()
		code, _, errOut := run(t, in, append([]string{"-b", at}, args...)...)
		if code != 1 || !strings.Contains(errOut, want) {
			t.Errorf("mink %s: exit code %d, %q; want 1, %q", strings.Join(args, " "), code, errOut, want)
		}
	}
	var created struct {
		Name       string
		Descriptor json.RawMessage
	}
	asJSON := func(text string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Errorf("not JSON: %v: %s", err, text)
		}
	}

	if out := ok("", "db", "create", "shop", "--json"); out != `{"database":"shop","state":"created"}`+"\n" {
		t.Errorf("db create: %s", out)
	}
	fails("exists already", "", "db", "create", "shop")
	if out := ok("", "db", "create", "shop", "--if-not-exists", "--json"); out != `{"database":"shop","state":"exists"}`+"\n" {
		t.Errorf("db create: %s", out)
	}
	asJSON(ok("", "table", "create", "shop.orders", "--json", "-C", "id BIGINT NOT NULL", "-C", "item STRING", "--bucket-key", "id", "--bucket-count", "2"), &created)
	if created.Name != "shop.orders" {
		t.Errorf("table create: %s", created.Name)
	}
	ok(string(created.Descriptor), "table", "create", "shop.copy", "--descriptor", "-")
	if code, _, errOut := run(t, "", "-b", at, "-q", "write", "shop.orders", os.DevNull); code != 0 || errOut != "" {
		t.Errorf("write of nothing, quiet: exit code %d, %s", code, errOut)
	}
	if out := ok(`{"id":1,"item":"hat"}{"id":2}`, "write", "shop.orders", "--json"); out != `{"rows":2}`+"\n" {
		t.Errorf("write: %s", out)
	}
	fails(`column "item" is STRING`, `{"id":1,"item":2}`, "write", "shop.orders")
	fails(`did you mean "shop.orders"?`, "", "read", "shop.order")
	fails(`table shop.orders has no "itme"; did you mean "item"?`, "", "read", "shop.orders", "--columns", "itme")
	ok("", "table", "create", "shop.pk", "-C", "id INT", "-C", "item STRING", "--primary-key", "id")
	ok(`{"id":1,"item":"hat"}{"id":2,"item":"coat"}{"id":1,"item":"cap"}`, "write", "shop.pk")
	if out := ok("", "lookup", "shop.pk", "1"); out != `{"id":1,"item":"cap"}`+"\n" {
		t.Errorf("lookup: %s", out)
	}
	ok("", "table", "drop", "shop.pk")

	out := ok("", "read", "shop.orders", "--columns", "id")
	if !strings.Contains(out, `{"id":1}`) || !strings.Contains(out, `{"id":2}`) || strings.Count(out, "\n") != 2 {
		t.Errorf("read: %s", out)
	}
	ok("", "table", "alter", "shop.orders", "--add", "note STRING", "--set", "log_ttl=30d")
	if out := ok("", "read", "shop.orders", "-n", "1", "--format", "csv"); !strings.HasPrefix(out, "id,item,note\n") || strings.Count(out, "\n") != 2 {
		t.Errorf("read after alter: %s", out)
	}
	ok("", "table", "create", "shop.days", "-C", "day STRING", "-C", "n INT", "--partition-by", "day")
	ok(`{"day":"a","n":1}{"day":"b","n":2}`, "write", "shop.days")
	ok("", "partition", "create", "shop.days", "day=c")
	if out := ok("", "read", "shop.days", "--partition", "day=b"); out != `{"day":"b","n":2}`+"\n" {
		t.Errorf("read of a partition: %s", out)
	}
	ok("", "partition", "drop", "shop.days", "day=b")
	ok("", "topic", "create", "clicks", "--partitions", "2", "--config", "retention.ms=86400000", "--config", "segment.bytes=1000")
	ok("", "table", "create", "kafka.typed", "-C", "n INT") // no topic
	if out := ok("", "topic", "list"); !strings.Contains(out, "clicks") || strings.Contains(out, "typed") {
		t.Errorf("topic list: %s", out)
	}
	fails("is not a topic", "", "topic", "describe", "typed")
	fails("is not a topic", "", "topic", "delete", "typed")
	fails("is not a topic", "", "topic", "delete", "typed", "--if-exists")
	ok("", "table", "describe", "kafka.typed") // still there
	ok("", "topic", "delete", "nothing", "--if-exists")
	out = ok("", "topic", "describe", "clicks")
	for want, there := range map[string]bool{"retention.ms": true, "86400000": true, "max.message.bytes": true, "segment.bytes": true, "segment.ms": false} {
		if strings.Contains(out, want) != there {
			t.Errorf("topic describe has %s: %v, want %v:\n%s", want, !there, there, out)
		}
	}
	if port := kafkaPort(t, at); !strings.Contains(out, port) || strings.Contains(out, at) {
		t.Errorf("topic describe names another address than the leader's Kafka port %s:\n%s", port, out)
	}
	fails(`differs from "id" in case only`, "", "table", "create", "shop.cases", "-C", "id INT", "-C", "ID INT")
	ok("", "table", "create", "shop.cases", "-C", "id INT")
	fails(`differs from "id" in case only`, "", "table", "alter", "shop.cases", "--add", "Id INT")
	ok("", "table", "drop", "shop.cases")
	if code, _, errOut := run(t, "", "-b", at, "topic", "describe", "words"); code != 1 || strings.Contains(errOut, "did you mean") {
		t.Errorf("topic describe of nothing near: %s", errOut)
	}

	// A table without rows has columns all the same, and a read past the end is told.
	for format, want := range map[string]string{"csv": "id,item,note,__bucket,__offset,__timestamp\n", "json": "", "table": " id  item  note  __bucket  __offset  __timestamp"} {
		if out := ok("", "read", "shop.orders", "--meta", "--format", format, "--from", "latest"); !strings.HasPrefix(out, want) || want == "" && out != "" {
			t.Errorf("read of nothing as %s: %q", format, out)
		}
	}
	if out := ok("", "read", "shop.orders", "--format", "csv", "--columns", "item,id", "--from", "latest"); out != "item,id\n" {
		t.Errorf("read of nothing, projected: %q", out)
	}
	stream := ok("", "read", "shop.copy", "--format", "arrow")
	if out := ok(stream, "write", "shop.copy", "--format", "arrow", "--json"); out != `{"rows":0}`+"\n" {
		t.Errorf("an Arrow stream of no rows, written: %s", out)
	}
	if code, out, errOut := run(t, "", "-b", at, "read", "shop.days", "--from", "99999"); code != 0 || out != "" ||
		!strings.Contains(errOut, "offset 99999 is beyond the end of shop.days: bucket 0 of partition a ends at offset 1") {
		t.Errorf("read past the end: exit code %d, %q, %q", code, out, errOut)
	}
	if code, _, errOut := run(t, "", "-b", at, "read", "shop.days", "--partition", "day=a", "--from", "1"); code != 0 || errOut != "" {
		t.Errorf("read from the end: exit code %d, %q", code, errOut)
	}
	if _, out, _ := run(t, "", "__complete", "-b", at, "read", "shop.o"); !strings.HasPrefix(out, "shop.orders\n") && !strings.Contains(out, "\nshop.orders\n") {
		t.Errorf("completion of tables: %q", out)
	}

	for _, args := range [][]string{
		{"db", "list"}, {"table", "list"}, {"table", "list", "shop"}, {"table", "describe", "shop.orders"}, {"table", "offsets", "shop.orders"},
		{"partition", "list", "shop.days"}, {"topic", "list"}, {"topic", "describe", "clicks"},
		{"cluster", "describe"}, {"cluster", "health"}, {"cluster", "config"}, {"cluster", "stats"}, {"fsck"}, {"fsck", "--deep"}, {"version"},
	} {
		var v any
		asJSON(ok("", append(args, "--json")...), &v)
		if out := ok("", args...); strings.Contains(out, "MISSING") || len(out) < 8 {
			t.Errorf("mink %s prints %q", strings.Join(args, " "), out)
		}
	}
	var bench benchResult
	asJSON(ok("", "bench", "shop.load", "--create", "--rows", "2000", "--batch", "100", "--json"), &bench)
	if bench.Rows != 2000 || bench.Errors != 0 {
		t.Errorf("bench: %+v", bench)
	}
	asJSON(ok("", "bench", "shop.load", "--rows", "1234", "--batch", "500", "--json"), &bench) // fewer than a batch for each writer
	if bench.Rows != 1234 {
		t.Errorf("bench of few rows: %+v", bench)
	}
	asJSON(ok("", "bench", "kafka.load", "--create", "--protocol", "kafka", "--rows", "130", "--batch", "50", "--json"), &bench)
	if bench.Rows != 130 || bench.Errors != 0 {
		t.Errorf("bench through Kafka: %+v", bench)
	}
	fails("has 4 tables", "", "db", "drop", "shop")
	ok("", "db", "drop", "shop", "--cascade")
}

// A command that goes on for long needs one of its nodes, not the first.
func TestWriteWhileTheFirstNodeIsDown(t *testing.T) {
	at := startNode(t)
	for _, args := range []string{"db create shop", "table create shop.orders -C id=BIGINT"} {
		words := strings.Fields(args)
		for i := range words {
			words[i] = strings.Replace(words[i], "=", " ", 1)
		}
		if code, _, errOut := run(t, "", append([]string{"-b", at}, words...)...); code != 0 {
			t.Fatal(errOut)
		}
	}
	if code, _, errOut := run(t, `{"id": 1}`, "-b", "127.0.0.1:1,"+at, "write", "shop.orders"); code != 0 || !strings.Contains(errOut, "1 row") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	// --retry-for counts from the start; a pause that would end after it is not begun.
	began := time.Now()
	if code, _, errOut := run(t, `{"id": 1}`, "-b", "127.0.0.1:1", "--retry-for", "2s", "write", "shop.orders"); code != 1 || time.Since(began) < 500*time.Millisecond || !strings.Contains(errOut, "`mink serve` starts one") {
		t.Errorf("exit code %d after %v, %s", code, time.Since(began), errOut)
	}
}

func TestNobodyThere(t *testing.T) {
	if nobodyThere(mink.ErrUnavailable) || nobodyThere(nil) {
		t.Error("a node that is there and busy is not an absent one")
	}
	a := &app{bootstrap: "host:1"}
	for text, want := range map[string]string{
		"dial tcp 127.0.0.1:1: connect: connection refused": "`mink serve` starts one here",
		"error reading server preface: EOF":                 "is not Arrow Flight",
		// A node that was killed as the client came is not taken for another protocol.
		"error reading server preface: read tcp 127.0.0.1:2->127.0.0.1:1: read: connection reset by peer": "a node that was killed",
	} {
		if got := a.hint(fmt.Errorf("connection error: desc = %q: %w", text, mink.ErrUnavailable)); !strings.Contains(got, want) || !strings.Contains(got, "host:1") {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if got := a.hint(mink.ErrUnavailable); got != "" {
		t.Error(got)
	}
}

// A read that goes on for ever holds no batch that it has printed.
func TestPrintedBatchesAreLetGo(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	s := schemaOf(t, "key BYTES", "n INT")
	held := 0
	batches := func(yield func(client.Batch, error) bool) {
		for range 3 {
			b := array.NewRecordBuilder(mem, s)
			b.Field(0).(*array.BinaryBuilder).Append([]byte("k"))
			b.Field(1).(*array.Int32Builder).Append(1)
			rec := b.NewRecordBatch()
			b.Release()
			if !yield(client.Batch{Record: rec}, nil) {
				return
			}
			rec.Release()
			held = max(held, mem.CurrentAlloc())
		}
	}
	var out bytes.Buffer
	a := &app{out: &out}
	rows, err := a.printPages(logPages(batches, logMeta), printFlags{format: "csv", text: true, meta: true}, emptyPage(&schema.Descriptor{}, nil, logMeta))
	if err != nil || rows != 3 || out.String() != "key,n,__bucket,__offset,__timestamp\nk,1,0,0,\nk,1,0,0,\nk,1,0,0,\n" {
		t.Errorf("%d rows, %v: %q", rows, err, out.String())
	}
	if held != 0 {
		t.Errorf("%d bytes of printed batches are held", held)
	}
}
