package e2e

import (
	"strconv"
	"testing"
)

// pyarrow upserts, updates columns, deletes and reads a primary-key table in every
// way, over kills of the node.
func TestPrimaryKeyTableThroughPyarrow(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.createTable("py.stock", columns("shop STRING", "id BIGINT", "item STRING", "price DECIMAL(10,2)", "pieces INT"),
		"--primary-key", "shop,id", "--bucket-key", "shop", "--bucket-count", "3")
	n.python(nil, "pk_rows.py", "check", "py.stock", "0")
	for round := range 3 {
		n.python(nil, "pk_rows.py", "write", "py.stock", strconv.Itoa(round))
		if round < 2 {
			n.kill()
			n.start()
		} else {
			n.stop()
			n.start()
		}
		n.python(nil, "pk_rows.py", "check", "py.stock", strconv.Itoa(round+1))
	}
	if report := check(t.Context(), t, n.client()); !report.Clean {
		t.Errorf("fsck: %+v", report)
	}
}
