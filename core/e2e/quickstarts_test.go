package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The programs of docs/kafka.md that need a client of this matrix, as written but
// for the broker's address; TestManualIsRunAsWritten runs the others.
func TestInteropQuickStarts(t *testing.T) {
	commands := interopCommands(t)
	n := newNode(t)
	n.start()
	page := func(t *testing.T, heading, language string) string {
		t.Helper()
		for _, b := range section(t, filepath.Join(repository, "docs", "kafka.md"), heading) {
			if b.language == language {
				return strings.ReplaceAll(b.code, "127.0.0.1:9092", n.kafka)
			}
		}
		t.Fatalf("docs/kafka.md: %q has no %s", heading, language)
		return ""
	}
	// program writes the code to a file and runs a command on it.
	program := func(t *testing.T, file, code string, command ...string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], path)...)
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", file, err, out, errOut.String())
		}
		if got := string(out); got != "0 0 hello\n" {
			t.Errorf("%s prints %q", file, got)
		}
	}
	t.Run("java", func(t *testing.T) {
		t.Parallel()
		java := commands["java"]
		if java == nil {
			t.Skip("the Java client is not there")
		}
		program(t, "QuickStart.java", page(t, "## Java", "java"), java[:len(java)-1]...)
	})
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		python := commands["kafka-python"]
		if python == nil {
			t.Skip("kafka-python is not there")
		}
		program(t, "quick.py", page(t, "## Python", "python"), python[0])
	})
}
