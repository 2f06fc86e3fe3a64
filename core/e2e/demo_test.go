package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// make demo, but for the building: it shows real rows after a kill -9.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := string(run(t, nil, minkBinary(t), "demo", "--dir", filepath.Join(dir, "data")))
	for _, w := range []string{"1461 rows", "drizzle", "kill -9", "all 1461 rows are there", "all 1462 lines equal", "2015-12-31", "has 5 rows", "-U"} {
		if !strings.Contains(out, w) {
			t.Errorf("the demo's output lacks %q:\n%s", w, out)
		}
	}
}
