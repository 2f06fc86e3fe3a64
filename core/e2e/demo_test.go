package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// make demo, but for the building: it shows real rows after a kill -9, and in the lake. With
// MINK_TEST_LAKE_PYTHON, an interpreter with DuckDB's extensions, another engine reads them too
// (make e2e-lake).
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"demo", "--dir", filepath.Join(dir, "data")}
	want := []string{
		"1461 rows", "drizzle", "kill -9", "all 1461 rows are there", "all 1462 lines equal", "2015-12-31", "has 5 rows", "-U",
		"1000 rows are in the Iceberg table", "461 came since", "log behind it, has all 1461", "35.6",
	}
	if python := os.Getenv("MINK_TEST_LAKE_PYTHON"); python != "" {
		args = append(args, "--python", python)
		want = append(want, "DuckDB 1.", "on the Iceberg table", "   the same\n")
	}
	out := string(run(t, nil, minkBinary(t), args...))
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("the demo's output lacks %q:\n%s", w, out)
		}
	}
}
