// Package codefault tests tests: it builds and runs them with a fault put into the code,
// and expects them to fail.
package codefault

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var (
	build = flag.Bool("mutants", false, "run the tests with each of the faults of the code that they must notice")
	turn  = flag.String("mutants-turn", "", "of each list only -mutants-part faults that follow one another, from a place that this text says: over many texts (commits) all have their turn")
	part  = flag.Int("mutants-part", 1, "see -mutants-turn")
)

// Fault is a change of one file of the module.
type Fault struct {
	Name     string
	File     string // slash-separated, from the module's root
	Old, New string // Old occurs once in File
	Tests    string // what -run selects; "": the tests that MustNotice names
}

// MustNotice runs tests of the package that calls it, once for each fault: tests is what
// -run selects, args are more flags. root is the module's, seen from the package. Without
// -mutants it looks only whether the faults still have their places in the code.
func MustNotice(t *testing.T, root string, faults []Fault, tests string, args ...string) {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			f.mustBeNoticed(t, root, *build && (*turn == "" || due(i, len(faults), *part, *turn)), cmp.Or(f.Tests, tests), args)
		})
	}
}

// due reports whether fault i of n has its turn: part of them do, as if the list were a
// ring.
func due(i, n, part int, turn string) bool {
	sum := sha256.Sum256([]byte(turn))
	from := int(binary.BigEndian.Uint32(sum[:]) % uint32(n))
	return (i-from+n)%n < part
}

func (f Fault) mustBeNoticed(t *testing.T, root string, build bool, tests string, args []string) {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(f.File))
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(code), f.Old); n != 1 {
		t.Fatalf("%s has the lines %d times that this fault replaces; write down what they are now, and see that the fault is noticed (-mutants):\n%s", f.File, n, f.Old)
	}
	if !build {
		return
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(changed, []byte(strings.Replace(string(code), f.Old, f.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"test", "-overlay", overlay, "-count=1", "-failfast", "-v", "-run", tests, "."}, args...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Errorf("nobody noticed:\n%s", out)
	case !strings.Contains(string(out), "--- FAIL: Test") && !strings.Contains(string(out), "panic: "):
		t.Errorf("it was not tested: %v\n%s", err, out)
	default:
		t.Logf("noticed: %s", finding(string(out)))
	}
}

// finding is the part of a test's output that says what was found.
func finding(out string) string {
	var last []string
	for _, line := range strings.Split(out, "\n") {
		switch {
		case strings.Contains(line, "[rapid] failed"), strings.Contains(line, "[rapid] flaky"), strings.Contains(line, "[rapid] panic"), strings.HasPrefix(line, "panic: "):
			return line
		case strings.HasPrefix(line, "--- FAIL"):
			return strings.Join(last, "\n")
		}
		if last = append(last, line); len(last) > 4 {
			last = last[1:]
		}
	}
	return "see above"
}
