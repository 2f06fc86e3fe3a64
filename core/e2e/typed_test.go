package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// orderLine is a line that a producer sends to the typed topic; python checks it
// as a row.
func orderLine(i int) string {
	if i%10 == 3 {
		return fmt.Sprintf(`{ "id" : %d }`, i)
	}
	return fmt.Sprintf(`{"id":%d,"note":"n %d \u00fc","price":%d.%02d,"at":"2026-01-31T07:%02d:%02d.%03dZ","tags":["a",null,"%d"],"sizes":{"s":%d}}`,
		i, i, i, i%100, i/60%60, i%60, i%1000, i, i)
}

func orderLines(first, end int) []byte {
	var b bytes.Buffer
	for i := first; i < end; i++ {
		b.WriteString(orderLine(i) + "\n")
	}
	return b.Bytes()
}

// kcat sends JSON lines to a typed table, pyarrow reads typed columns, kcat reads
// the bytes that it sent; and what pyarrow writes is JSON for kcat.
func TestTypedTopic(t *testing.T) {
	const table, bad = "kafka.orders", `{"id":"seven"}`
	inEveryWALState(t, story{
		prepare: func(n *node) {
			n.createTable(table, []string{"-C", "id BIGINT NOT NULL", "-C", "note STRING", "-C", "price DECIMAL(12,2)", "-C", "at TIMESTAMP_LTZ(3)",
				"-C", "tags ARRAY<STRING>", "-C", "sizes MAP<STRING, INT>"}, "--option", "kafka.value.format=json")
		},
		first: func(n *node) {
			n.kcat(orderLines(0, 150), "-P", "-t", "orders")
			if _, errOut, _ := n.tryKcat([]byte(bad+"\n"), "-P", "-t", "orders"); !strings.Contains(string(errOut), "failed to validate record") {
				n.t.Errorf("a bad record is not refused: %s", errOut)
			}
			n.python(nil, "typed_topic.py", "put", table, "150", "170")
		},
		second: func(n *node) {
			n.kcat(orderLines(170, 300), "-P", "-t", "orders", "-z", "zstd")
			n.mink(nil, "table", "alter", table, "--set", "kafka.bad.records=quarantine")
			n.kcat([]byte(bad+"\n"), "-P", "-t", "orders")
			n.kcat(orderLines(300, 301), "-P", "-t", "orders", "-z", "lz4")
		},
		check: func(n *node, when string) {
			n.python(nil, "typed_topic.py", "check", table, "301", "300")
			out := n.kcat(nil, "-C", "-t", "orders", "-o", "beginning", "-c", "302", "-q", "-X", "check.crcs=true", "-f", "%s\n")
			lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if len(lines) != 302 {
				n.t.Fatalf("%s: %d records", when, len(lines))
			}
			for i, line := range lines {
				want := bad
				switch {
				case i < 300:
					want = orderLine(i)
				case i > 300:
					want = orderLine(i - 1)
				}
				if i >= 150 && i < 170 { // written as rows
					want = fmt.Sprintf(`{"id":%d,"note":"row","price":"%d.50","at":"2026-01-31T07:05:00.123Z","tags":["x"],"sizes":[{"key":"k","value":%d}]}`, i, i, i)
				}
				if line != want {
					n.t.Fatalf("%s: record %d is %s, want %s", when, i, line, want)
				}
			}
			_, errOut, err := n.tryMink(nil, "read", table)
			if err != nil || !strings.Contains(string(errOut), "300..300") {
				n.t.Errorf("%s: mink read does not say what it skipped: %v, %s", when, err, errOut)
			}
		},
	})
}
