package e2e

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const repository = "../.."

// block is a piece of code in a page: indented (shell), or fenced with a language.
type block struct{ language, code string }

// section answers the blocks between a heading and the next one.
func section(t *testing.T, page, heading string) (blocks []block) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var fence *block
	indented := false
	for s := bufio.NewScanner(strings.NewReader(rest)); s.Scan(); {
		line := s.Text()
		code, isIndented := strings.CutPrefix(line, "    ")
		switch language, isFence := strings.CutPrefix(line, "```"); {
		case isFence && fence == nil:
			fence = &block{language: language}
		case isFence:
			blocks, fence = append(blocks, *fence), nil
		case fence != nil:
			fence.code += line + "\n"
		case isIndented && indented:
			blocks[len(blocks)-1].code += code + "\n"
		case isIndented:
			blocks = append(blocks, block{"sh", code + "\n"})
		}
		indented = isIndented && fence == nil
	}
	return blocks
}

// portsFree reports that the default ports can be had.
func portsFree(t *testing.T) bool {
	t.Helper()
	for _, address := range []string{"127.0.0.1:9123", "127.0.0.1:9092", "127.0.0.1:9190"} {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Logf("%s is taken: %v", address, err)
			return false
		}
		_ = l.Close()
	}
	return true
}

// workspace is a directory that looks like the repository after `make build`,
// for commands that are run as they are written.
func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(minkBinary(t), filepath.Join(dir, "bin", "mink")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Every command of the README's "Use it", as written, on the default ports.
func TestReadmeIsRunAsWritten(t *testing.T) {
	py := os.Getenv("MINK_TEST_PYTHON")
	if !portsFree(t) {
		t.Skip("the default ports are taken")
	}
	dir := workspace(t)
	blocks := section(t, filepath.Join(repository, "README.md"), "## Use it")
	if len(blocks) != 4 || !strings.Contains(blocks[0].code, "make build\n") || !strings.Contains(blocks[0].code, "bin/mink serve") || blocks[3].language != "python" {
		t.Fatalf("the section has changed, and this test must with it: %q", blocks)
	}
	node := exec.Command("bin/mink", "serve") // the first block; what it builds is built
	node.Dir = dir
	log := &tail{}
	node.Stderr = log
	out, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = node.Process.Kill()
		_ = node.Wait()
	}()
	watchdog := time.AfterFunc(time.Minute, func() { _ = node.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	watchdog.Stop()
	if err != nil {
		t.Fatalf("serve: %v\n%s", err, log)
	}
	t.Log(strings.TrimSpace(line))

	shell := func(code string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", code)
		cmd.Dir = dir
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", code, err, out, errOut.String())
		}
		t.Logf("%s\n%s", code, out)
		return string(out)
	}
	has := func(what, out string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("%s: %q lacks %q", what, out, w)
			}
		}
	}
	if got := shell(blocks[1].code); got != "one\ntwo\nthree\n" {
		t.Errorf("the Kafka part prints %q", got)
	}
	has("the table part", shell(blocks[2].code), `"value":"one"`, `"__offset":2`, "boots", "2026-01-31")
	script := filepath.Join(dir, "readme.py")
	if err := os.WriteFile(script, []byte(blocks[3].code), 0o600); err != nil {
		t.Fatal(err)
	}
	if py == "" {
		t.Skip("MINK_TEST_PYTHON is not set: the Python part is left out")
	}
	has("the Python part", string(run(t, nil, py, script)), "boots", "hat", "scarf")
}

// make demo, but for the building: it shows real rows after a kill -9.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := string(run(t, nil, minkBinary(t), "demo", "--dir", filepath.Join(dir, "data")))
	for _, w := range []string{"1461 rows", "drizzle", "kill -9", "all 1461 rows are there", "all 1462 lines equal", "2015-12-31"} {
		if !strings.Contains(out, w) {
			t.Errorf("the demo's output lacks %q:\n%s", w, out)
		}
	}
}
