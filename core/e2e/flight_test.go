package e2e

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/client"
)

const (
	airportsCSV = "testdata/airports.csv"
	weatherCSV  = "../../cmd/mink/demodata/seattle-weather.csv"
)

// columns are `-C` flags.
func columns(list ...string) (flags []string) {
	for _, c := range list {
		flags = append(flags, "-C", c)
	}
	return flags
}

var (
	typesColumns = columns("id BIGINT NOT NULL", "yes BOOLEAN", "tiny TINYINT", "small SMALLINT", "number INT", "real FLOAT", "double DOUBLE",
		"money DECIMAL(20,4)", "huge DECIMAL(38,0)", "code CHAR(8)", "text STRING", "fixed BINARY(4)", "bytes BYTES", "day DATE",
		"clock_s TIME(0)", "clock_ns TIME(9)", "at_s TIMESTAMP(0)", "at_ms TIMESTAMP(3)", "at_us TIMESTAMP(6)", "at_ns TIMESTAMP(9)",
		"instant TIMESTAMP_LTZ(6)", "words ARRAY<STRING>", "counts MAP<STRING, INT>", "place ROW<x INT, tags ARRAY<ROW<k STRING, v DOUBLE>>>")
	airportsColumns = columns("iata STRING NOT NULL", "name STRING", "city STRING", "state STRING", "country STRING", "latitude DOUBLE", "longitude DECIMAL(12,8)")
	weatherColumns  = columns("date DATE NOT NULL", "precipitation DOUBLE", "temp_max DECIMAL(5,1)", "temp_min FLOAT", "wind DOUBLE", "weather STRING")
)

func (n *node) createTable(name string, columns []string, flags ...string) {
	n.t.Helper()
	database, _, _ := strings.Cut(name, ".")
	n.mink(nil, "db", "create", database, "--if-not-exists")
	n.mink(nil, append(append([]string{"table", "create", name}, columns...), flags...)...)
}

// pyarrow writes typed rows by path, compressed and not, and reads them back
// equal, types and nulls and nesting and order.
func TestTypedRowsComeBackThroughPyarrow(t *testing.T) {
	inEveryWALState(t, story{
		prepare: func(n *node) {
			n.createTable("py.types", typesColumns)
			n.createTable("py.airports", airportsColumns)
			n.createTable("py.weather", weatherColumns, "--bucket-count", "3", "--bucket-key", "date")
		},
		first: func(n *node) {
			n.python(nil, "typed_rows.py", "put", "py.types", "types", "0", "700")
			n.python(nil, "typed_rows.py", "put", "py.airports", airportsCSV, "0", "2000", "zstd")
			n.python(nil, "typed_rows.py", "put", "py.weather", weatherCSV, "0", "1000")
		},
		second: func(n *node) {
			n.python(nil, "typed_rows.py", "put", "py.types", "types", "700", "1500", "lz4")
			n.python(nil, "typed_rows.py", "put", "py.airports", airportsCSV, "2000", "9999")
			n.python(nil, "typed_rows.py", "put", "py.weather", weatherCSV, "1000", "9999", "zstd")
		},
		check: func(n *node, _ string) {
			n.python(nil, "typed_rows.py", "check", "py.types", "types")
			n.python(nil, "typed_rows.py", "check", "py.airports", airportsCSV)
			n.python(nil, "typed_rows.py", "set", "py.weather", weatherCSV, "date")
		},
	})
}

// rowsOf is a CSV file as a header and rows.
func rowsOf(t *testing.T, b []byte) (header []string, rows [][]string) {
	t.Helper()
	all, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all[0], all[1:]
}

// sameCell compares a CSV cell as text, or as the numbers that two texts are.
func sameCell(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && x == y
}

// The command line client writes CSV and reads it back.
func TestCSVComesBackThroughTheCommandLine(t *testing.T) {
	_, first, second := lines(t, airportsCSV)
	whole, _, _ := lines(t, airportsCSV)
	header, want := rowsOf(t, whole)
	head := whole[:bytes.IndexByte(whole, '\n')+1]
	inEveryWALState(t, story{
		prepare: func(n *node) { n.createTable("cli.airports", airportsColumns) },
		first:   func(n *node) { n.mink(first, "write", "cli.airports", "--format", "csv") },
		second: func(n *node) {
			n.mink(append(bytes.Clone(head), second...), "write", "cli.airports", "--format", "csv", "--batch-rows", "100")
		},
		check: func(n *node, when string) {
			gotHeader, got := rowsOf(n.t, n.mink(nil, "read", "cli.airports", "--format", "csv"))
			if !reflect.DeepEqual(gotHeader, header) || len(got) != len(want) {
				n.t.Fatalf("%s: %d rows of %v, want %d of %v", when, len(got), gotHeader, len(want), header)
			}
			for i, row := range got {
				for j, cell := range row {
					if !sameCell(cell, want[i][j]) {
						n.t.Fatalf("%s: row %d, column %s: %q, want %q", when, i, header[j], cell, want[i][j])
					}
				}
			}
		},
	})
}

// weatherJSON is the weather as JSON lines.
func weatherJSON(t *testing.T) []byte {
	t.Helper()
	whole, _, _ := lines(t, weatherCSV)
	header, rows := rowsOf(t, whole)
	var out bytes.Buffer
	for _, r := range rows {
		m := map[string]any{}
		for i, cell := range r {
			if f, err := strconv.ParseFloat(cell, 64); err == nil && header[i] != "temp_max" {
				m[header[i]] = f
			} else {
				m[header[i]] = cell // a decimal is text
			}
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(b, '\n'))
	}
	return out.Bytes()
}

func objects(t *testing.T, b []byte) (out []map[string]any) {
	t.Helper()
	for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
		var m map[string]any
		if err := d.Decode(&m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// JSON lines go in and come back through the command line, and again through
// an Arrow stream into a second table.
func TestJSONAndArrowComeBackThroughTheCommandLine(t *testing.T) {
	in := weatherJSON(t)
	half := bytes.IndexByte(in[len(in)/2:], '\n') + len(in)/2 + 1
	want := objects(t, in)
	same := func(n *node, when, table string) {
		n.t.Helper()
		got := objects(n.t, n.mink(nil, "read", table))
		if len(got) != len(want) {
			n.t.Fatalf("%s: %s has %d rows, want %d", when, table, len(got), len(want))
		}
		for i := range got {
			for k, v := range want[i] {
				if !sameCell(fmt.Sprint(got[i][k]), fmt.Sprint(v)) {
					n.t.Fatalf("%s: %s, row %d: %v, want %v", when, table, i, got[i], want[i])
				}
			}
		}
	}
	inEveryWALState(t, story{
		prepare: func(n *node) {
			n.createTable("cli.weather", weatherColumns)
			n.createTable("cli.copy", weatherColumns)
		},
		first: func(n *node) { n.mink(in[:half], "write", "cli.weather") },
		second: func(n *node) {
			n.mink(in[half:], "write", "cli.weather")
			stream := n.mink(nil, "read", "cli.weather", "--format", "arrow")
			n.mink(stream, "write", "cli.copy", "--format", "arrow")
		},
		check: func(n *node, when string) {
			same(n, when, "cli.weather")
			same(n, when, "cli.copy")
		},
	})
}

// The Go client's writer outlives a kill between two halves, and its scanner
// reads what it wrote, in order.
func TestGoClientOutlivesKills(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.createTable("go.rows", columns("part INT NOT NULL", "seq BIGINT NOT NULL", "text STRING"))
	c := n.client()
	w, err := c.NewWriter(t.Context(), "go.rows", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	const batches, rows = 40, 250
	for i := range int64(batches) {
		rec := numbered(w.Schema(), 0, i*rows, rows)
		_, err := w.Append(t.Context(), rec)
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
		if i%10 == 5 {
			n.kill() // with appends on their way
			n.start()
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var next int64
	for b, err := range c.Scan(t.Context(), client.ScanRequest{Table: "go.rows", Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		seq, text := b.Record.Column(1).(*array.Int64), b.Record.Column(2).(*array.String)
		for i := range int(b.Record.NumRows()) {
			if seq.Value(i) != next || text.Value(i) != fmt.Sprintf("row %d of part 0", next) {
				t.Fatalf("row %d comes where row %d belongs: %q", seq.Value(i), next, text.Value(i))
			}
			next++
		}
	}
	if next != batches*rows {
		t.Fatalf("%d of %d rows are there", next, batches*rows)
	}
}
