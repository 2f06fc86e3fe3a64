package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestKeyedCommands goes through the commands of primary-key tables against a node.
func TestKeyedCommands(t *testing.T) {
	at := startNode(t)
	ok := func(in string, args ...string) string {
		t.Helper()
		code, out, errOut := run(t, in, append([]string{"-b", at}, args...)...)
		if code != 0 {
			t.Fatalf("mink %s: exit code %d: %s", strings.Join(args, " "), code, errOut)
		}
		return out
	}
	prints := func(want string, in string, args ...string) {
		t.Helper()
		if got := ok(in, args...); got != want {
			t.Errorf("mink %s prints\n%swant\n%s", strings.Join(args, " "), got, want)
		}
	}
	fails := func(want string, code int, in string, args ...string) {
		t.Helper()
		got, _, errOut := run(t, in, append([]string{"-b", at}, args...)...)
		if got != code || !strings.Contains(errOut, want) {
			t.Errorf("mink %s: exit code %d, %q; want %d, %q", strings.Join(args, " "), got, errOut, code, want)
		}
	}
	ok("", "db", "create", "shop")
	ok("", "table", "create", "shop.stock", "-C", "item STRING", "-C", "n INT", "-C", "price DECIMAL(8,2)", "-C", "at DATE NOT NULL", "--primary-key", "item")
	prints("{\"rows\":3}\n", "item,n,price,at\nboots,3,79.90,2026-01-31\nhat,5,25.00,2026-01-31\n-7,1,,2026-01-31\n", "write", "shop.stock", "--format", "csv", "--json")
	fails(`column "at" is NOT NULL and has no value`, 1, `{"item":"hat","n":4}`, "write", "shop.stock")
	fails(`the stream has no column "at", which is NOT NULL`, 1, `{"item":"hat","n":4}`, "write", "shop.stock", "--columns", "n")
	ok(`{"item":"hat","n":4,"at":"2026-02-01"}`, "write", "shop.stock", "--columns", "n,at")
	prints(`{"item":"hat","n":4,"price":"25.00","at":"2026-02-01"}`+"\n", "", "lookup", "shop.stock", "hat")
	ok(`{"item":"boots"}{"item":"nothing","n":9}`, "write", "shop.stock", "--delete")
	ok(ok("", "read", "shop.stock", "--format", "arrow", "--from-key", "hat"), "write", "shop.stock", "--delete", "--format", "arrow", "--columns", "price")
	prints("2\n", "", "table", "count", "shop.stock")
	prints("item,n,price\nhat,4,\n-7,1,\n", "", "lookup", "shop.stock", "--format", "csv", "--columns", "item,n,price", "--", "item=hat", "boots", "-7")
	if _, _, errOut := run(t, "", "-b", at, "lookup", "shop.stock", "boots"); errOut != "no row has the key boots\n" {
		t.Errorf("a key without a row: %q", errOut)
	}
	prints("item,n\n", "", "lookup", "shop.stock", "boots", "--format", "csv", "--columns", "item,n")
	log := ok("", "read", "shop.stock", "--mode", "log", "--meta", "--columns", "item,n")
	var kinds, items []string
	for line := range strings.Lines(log) {
		var row struct {
			Item   string
			Change string `json:"__change"`
			Offset *int64 `json:"__offset"`
			Time   string `json:"__timestamp"`
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil || row.Offset == nil || *row.Offset != int64(len(kinds)) || row.Time == "" {
			t.Fatalf("%v: %s", err, line)
		}
		kinds, items = append(kinds, row.Change), append(items, row.Item)
	}
	if got, want := strings.Join(kinds[:6], " ")+" "+strings.Join(items[:6], " "), "+I +I +I -U +U -D boots hat -7 hat hat boots"; got != want {
		t.Errorf("the changelog is %s, want %s:\n%s", got, want, log)
	}

	ok("", "table", "create", "shop.days", "-C", "id BIGINT", "-C", "day DATE", "-C", "n INT", "--primary-key", "day,id", "--partition-by", "day", "--bucket-count", "2")
	ok("id,day,n\n1,2026-01-01,1\n2,2026-01-01,2\n3,2026-01-01,3\n1,2026-01-02,4\n", "write", "shop.days", "--format", "csv")
	prints("{\"n\":4}\n{\"n\":3}\n", "", "lookup", "shop.days", "id=1,day=2026-01-02", "2026-01-01,3", "2026-01-09,1", "--columns", "n")
	if out := ok("", "lookup", "shop.days", "--prefix", "2026-01-01"); strings.Count(out, "\n") != 3 || strings.Contains(out, `"n":4`) {
		t.Errorf("a partition's rows: %s", out)
	}
	if out := ok("", "lookup", "shop.days", "--prefix", "id=1"); strings.Count(out, "\n") != 2 {
		t.Errorf("a key in every partition: %s", out)
	}
	prints("", "", "lookup", "shop.days", "--prefix", "2026-01-09")
	prints("3\n", "", "table", "count", "shop.days", "--partition", "day=2026-01-01")
	if out := ok("", "read", "shop.days", "--from-key", "2", "--to-key", "4", "--partition", "day=2026-01-01", "--columns", "id"); strings.Count(out, "\n") != 2 || strings.Contains(out, "1") {
		t.Errorf("a range of keys: %s", out)
	}
	if out := ok("", "read", "shop.days", "-n", "3"); strings.Count(out, "\n") != 3 {
		t.Errorf("limit 3: %s", out)
	}
	if out := ok("", "read", "shop.days", "--meta", "-n", "1"); !strings.Contains(out, `"__bucket":`) || !strings.Contains(out, `"__log_offset":`) {
		t.Errorf("what is known of a row: %s", out)
	}
	if out := ok("", "read", "shop.days", "-f", "-n", "4", "--columns", "n"); strings.Count(out, `"__change":"+I"`) != 4 || !strings.Contains(out, `"__offset":null`) {
		t.Errorf("a copy: %s", out)
	}
	prints("{\"rows\":1}\n", `{"id":3,"day":"2026-01-01"}`, "write", "shop.days", "--delete", "--json")
	prints("3\n", "", "table", "count", "shop.days")

	ok("", "table", "create", "shop.events", "-C", "id INT")
	for want, args := range map[string]string{
		"shop.events is a log table: it has no keys":           "read shop.events --mode snapshot",
		"shop.events is a log table: it has no keys, only":     "read shop.events --from-key 1",
		"shop.events is a log table: it has no primary key":    "lookup shop.events 1",
		"mink table offsets shop.events":                       "table count shop.events",
		"rows are appended, --delete and --columns are for":    "write shop.events --delete",
		`has no "pric"; did you mean "price"?`:                 "write shop.stock --columns pric",
		`has no "nn"; did you mean "n"?`:                       "lookup shop.stock hat --columns nn",
		`column "day" is DATE NOT NULL: cannot read "x": want`: "lookup shop.days x,1",
		`did you mean "shop.days"?`:                            "lookup shop.day 1",
	} {
		fails(want, 1, "", strings.Fields(args)...)
	}
	for want, args := range map[string]string{
		`it has no id, the primary key is day, id; --prefix`: "lookup shop.days 2026-01-01",
		`key "1,2,3" has 3 values, the key is day, id`:       "lookup shop.days 1,2,3",
		`"dya=1" is no NAME=VALUE of a key column`:           "lookup shop.days dya=1,id=2",
		`key "id=1,id=2" has id twice`:                       "lookup shop.days id=1,id=2",
		`wants keys behind the table; mink read shop.days`:   "lookup shop.days",
		`say --mode log for its changelog`:                   "read shop.days --from 1",
	} {
		fails(want, 2, "", strings.Fields(args)...)
	}
	var bench benchResult
	for _, args := range []string{"--create --what upsert", "--what lookup --batch 3", "--what lookup --batch 1"} {
		out := ok("", append([]string{"bench", "shop.load", "--rows", "2000", "--keys", "50", "--json"}, strings.Fields(args)...)...)
		if err := json.Unmarshal([]byte(out), &bench); err != nil || bench.Rows != 2000 || bench.Errors != 0 || strings.Contains(args, "lookup") != (bench.Found == 2000) {
			t.Errorf("bench %s: %v, %s", args, err, out)
		}
	}
	if cpu, err := processCPU(os.Getpid()); err != nil || cpu <= 0 {
		t.Errorf("CPU time of this process: %v, %v", cpu, err)
	}
}
