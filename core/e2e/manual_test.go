package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mink-project/mink/core/metalog/pgtest"
)

const repository = "../.."

// block is a piece of code in a page: indented (sh), or fenced with a language:
//
//	sh      run with bash; a line that begins with "bin/mink serve" goes on in the background
//	python  run with pyarrow
//	go      run with the repository's modules, when it is a whole program
//	output  what the block before it prints, but for times and versions
//	toml    the file mink.toml
//	json    a table's descriptor
//	text    nothing to run
//
// and indented by some more where it is a step of a list.
//
// A page that starts nodes in the background of its shell ("bin/mink serve ... &") is read in
// one shell from there on, with its jobs and variables; a node that an earlier block
// started is ended before.
//
// An HTML comment right before a block may say more:
//
//	<!-- not run: reason -->
//	<!-- run by: TEST of PACKAGE -->              a fragment: another test has the rest of it
//	<!-- until interrupted, fed by: command -->   run the command until it prints, then interrupt it
type block struct {
	language, code string
	notRun         string // reason
	runBy          string // another test
	fedBy          string
}

// page is one page of the manual and what its blocks must have printed.
type page struct {
	file    string
	heading string // of the only section that is read; "" for all
	node    bool   // the page expects a running node
	// postgres: the page expects a server with an empty database mink, on its usual port;
	// it gets one of its own.
	postgres bool
	sink     string // the page expects this example of a sink, as make plugins builds it
	prints   []string
	// elsewhere lists languages that another test runs: TestInteropQuickStarts,
	// which has the clients.
	elsewhere []string
}

// The whole manual; a page without code is in it too, so that code that it gets
// one day is run.
var manual = []page{
	{file: "README.md", heading: "## Use it", prints: []string{"one\ntwo\nthree\n", `"value":"one"`, `"__offset":2`, "boots", "2026-01-31", `{"item":"boots","n":2}`, `"__change":"-U"`, "hat", "scarf"}},
	{file: "docs/quickstart.md", prints: []string{"retention.ms", "red, hat", `{"id":2,"item":"red, hat"}`, `{"item":"boots","n":2,"price":"79.90"}`, "gloves", "clean: ", "# HELP mink_node_ready", "meta.db"}},
	{file: "docs/concepts.md"},
	{file: "docs/tables.md", node: true, prints: []string{"auto_partition.time_unit", `{"country":"de","n":1}`, "table web.orders: lake snapshot "}},
	{file: "docs/kafka.md", node: true, elsewhere: []string{"java", "python"}, prints: []string{"0 0 k1 v1 trace=abc", "clicks [0] offset 2", "0 0 hello", `{"id":1,"price":"12.30",`}},
	{file: "docs/flight.md", node: true, prints: []string{"milk", "first_offset"}},
	{file: "docs/configuration.md"},
	{file: "docs/operations.md", postgres: true, prints: []string{"clean: ", "node 3 is ready", "2 buckets", "moved", "removed"}},
	{file: "docs/disaster-recovery.md", prints: []string{"metadata at index", "restored the metadata at index", `{"id":1,"item":"boots"}`, "clean: "}},
	{file: "docs/plugins.md"},
	{file: "docs/sinks.md", sink: "jsonl", prints: []string{`"item":"boots"`}},
	{file: "docs/lake.md"},
	{file: "docs/limits.md"},
	{file: "docs/benchmarks.md"},
	{file: "docs/status.md"},
}

// notRunMax keeps the blocks that are not run few: those that want Docker, Kubernetes,
// systemd, a quiet machine, or a database of a person's own.
const notRunMax = 7

// Every command of the manual, as written, on the default ports; only /tmp/mink-data,
// /tmp/mink-three, /tmp/mink-sinks and /tmp/mink-files are directories of the test's own, and Postgres is its own.
func TestManualIsRunAsWritten(t *testing.T) {
	if !portsFree(t) {
		t.Skip("the default ports are taken")
	}
	minkBinary(t)
	notRun := 0
	for _, p := range manual {
		blocks := blocksOf(t, p)
		for _, b := range blocks {
			if b.notRun != "" {
				t.Logf("%s: not run (%s):\n%s", p.file, b.notRun, b.code)
				notRun++
			}
			if b.runBy != "" {
				isThere(t, b.runBy)
			}
		}
		if len(blocks) > 0 {
			t.Run(strings.TrimSuffix(filepath.Base(p.file), ".md"), func(t *testing.T) { runPage(t, p, blocks) })
		}
	}
	if notRun > notRunMax {
		t.Errorf("%d blocks of the manual are not run, at most %d may be: make them commands that work", notRun, notRunMax)
	}
}

// isThere checks that "TEST of PACKAGE" is a test.
func isThere(t *testing.T, name string) {
	t.Helper()
	test, dir, _ := strings.Cut(name, " of ")
	files, _ := filepath.Glob(filepath.Join(repository, dir, "*_test.go"))
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && strings.Contains(string(b), "\nfunc "+test+"(t *testing.T)") {
			return
		}
	}
	t.Errorf("a block of the manual is run by %s, which is not there", name)
}

var marker = regexp.MustCompile(`^<!-- (not run|run by|until interrupted, fed by): (.*) -->$`)

// blocksOf reads a page's blocks.
func blocksOf(t *testing.T, p page) (blocks []block) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, p.file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if p.heading != "" {
		_, rest, ok := strings.Cut(text, "\n"+p.heading+"\n")
		if !ok {
			t.Fatalf("%s has no heading %q", p.file, p.heading)
		}
		text, _, _ = strings.Cut(rest, "\n## ")
	}
	var next block // what a marker said of the coming block
	var fence *block
	begin := func(language string) block {
		b := next
		b.language, next = language, block{}
		return b
	}
	indented := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		code, isIndented := strings.CutPrefix(line, "    ")
		language, isFence := strings.CutPrefix(line, "```")
		switch m := marker.FindStringSubmatch(line); {
		case isFence && fence == nil:
			b := begin(language)
			fence = &b
		case isFence:
			blocks, fence = append(blocks, *fence), nil
		case fence != nil:
			fence.code += line + "\n"
		case isIndented && indented:
			blocks[len(blocks)-1].code += code + "\n"
		case isIndented:
			b := begin("sh")
			b.code = code + "\n"
			blocks = append(blocks, b)
		case m != nil && m[1] == "not run":
			next.notRun = m[2]
		case m != nil && m[1] == "run by":
			next.runBy = m[2]
		case m != nil:
			next.fedBy = m[2]
		}
		indented = isIndented && fence == nil
	}
	return blocks
}

// section answers the blocks between a heading of a page and the next one.
func section(t *testing.T, file, heading string) []block {
	t.Helper()
	rel, err := filepath.Rel(repository, file)
	if err != nil {
		t.Fatal(err)
	}
	return blocksOf(t, page{file: rel, heading: heading})
}

// workspace is a directory that looks like the repository after `make build`,
// for commands that are run as they are written. Its tools/make knows `build`.
func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"bin", "tools"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(minkBinary(t), filepath.Join(dir, "bin", "mink")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tools", "make"), []byte("#!/bin/sh\n[ \"$*\" = build ]\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// portsFree reports that the default ports can be had.
func portsFree(t *testing.T) bool {
	t.Helper()
	for _, port := range []string{"9123", "9092", "9190", "9124", "9093", "9191", "9125", "9094", "9192"} {
		address := "127.0.0.1:" + port
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Logf("%s is taken: %v", address, err)
			return false
		}
		_ = l.Close()
	}
	return true
}

// reader is somebody who types in what a page says.
type reader struct {
	t       *testing.T
	dir     string            // looks like the repository after `make build`
	places  *strings.Replacer // what stands for directories and addresses of the page
	session *terminal         // nil: every block has a shell of its own
	nodes   []*exec.Cmd
	env     []string
	last    string // what the last block printed
	all     strings.Builder
	number  int
}

func runPage(t *testing.T, p page, blocks []block) {
	dir := workspace(t)
	places := []string{"/tmp/mink-data", filepath.Join(dir, "mink-data"), "/tmp/mink-three", filepath.Join(dir, "mink-three"), "/tmp/mink-sinks", filepath.Join(dir, "mink-sinks"), "/tmp/mink-files", filepath.Join(dir, "mink-files")}
	if p.postgres {
		places = append(places, "postgres://postgres@127.0.0.1:5432/mink", emptyDatabase(t))
	}
	r := &reader{t: t, dir: dir, places: strings.NewReplacer(places...)}
	if p.sink != "" {
		r.env = append(r.env, "MINK_PLUGIN_DIR="+installSink(t, p.sink))
	}
	defer r.stop()
	if p.node {
		r.serve("bin/mink serve")
	}
	left := false
	for _, b := range blocks {
		if b.notRun == "" && b.runBy == "" && !slices.Contains(p.elsewhere, b.language) {
			left = !r.follow(b) || left
		}
	}
	if left {
		t.Skip("MINK_TEST_PYTHON is not set: Python was left out")
	}
	for _, w := range p.prints {
		if !strings.Contains(r.all.String(), w) {
			t.Errorf("%s: the blocks print no %q:\n%s", p.file, w, r.all.String())
		}
	}
}

// follow does what a block says; false: it could not.
func (r *reader) follow(b block) bool {
	r.t.Helper()
	code := r.places.Replace(b.code)
	switch b.language {
	case "sh":
		if b.fedBy != "" {
			r.last = r.interrupted(strings.TrimSpace(code), b.fedBy)
			break
		}
		if r.session != nil || background.MatchString(code) {
			r.last = r.typed(code)
			break
		}
		r.last = r.shell(code)
	case "python":
		py := os.Getenv("MINK_TEST_PYTHON")
		if py == "" {
			return false
		}
		r.last = r.process(py, r.file("block.py", code))
	case "go":
		r.last = r.process("go", "run", r.file("main.go", code))
	case "toml":
		if err := os.WriteFile(filepath.Join(r.dir, "mink.toml"), []byte(code), 0o600); err != nil {
			r.t.Fatal(err)
		}
	case "json":
		r.last = r.shell("bin/mink table create web.described --descriptor " + r.file("descriptor.json", code))
	case "output":
		if got, want := plain(r.last), plain(code); got != want {
			r.t.Errorf("the page says\n%sand it is\n%s", want, got)
		}
	case "text":
	default:
		r.t.Errorf("a block of language %q: what is to be done with it?\n%s", b.language, code)
	}
	r.all.WriteString(r.last)
	return true
}

var (
	times    = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	versions = regexp.MustCompile(`(?m)^mink \S+ ready`)
)

// plain is a text without what differs from run to run.
func plain(text string) string {
	return versions.ReplaceAllString(times.ReplaceAllString(strings.TrimRight(text, "\n")+"\n", "TIME"), "mink VERSION ready")
}

// file writes a file of the block's own, outside of what the page sees.
func (r *reader) file(name, content string) string {
	r.t.Helper()
	r.number++
	dir := filepath.Join(r.dir, "tools", fmt.Sprint(r.number))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// command is a process in the page's directory, or for Go in the repository's.
func (r *reader) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.dir
	if name == "go" {
		cmd.Dir = repository
	}
	cmd.Env = append(append(os.Environ(), r.env...), "PATH="+filepath.Join(r.dir, "tools")+":"+filepath.Join(r.dir, "bin")+":"+os.Getenv("PATH"))
	return cmd
}

func (r *reader) process(name string, args ...string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := r.command(ctx, name, args...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	shown, _ := os.ReadFile(args[len(args)-1])
	if err != nil {
		r.t.Fatalf("%s: %v\n%s%s", shown, err, out, errOut.String())
	}
	r.t.Logf("%s\n%s%s", shown, out, errOut.String())
	return string(out)
}

// shell runs lines with bash, from a file: their text must not show in the
// process list, where a page may look for a node.
func (r *reader) shell(code string) string {
	r.t.Helper()
	out, script := "", ""
	flush := func() {
		if script != "" {
			out += r.process("bash", "-euo", "pipefail", r.file("block.sh", script))
		}
		script = ""
	}
	for line := range strings.Lines(code) {
		if strings.HasPrefix(strings.TrimSpace(line), "bin/mink serve") {
			flush()
			out += r.serve(strings.TrimSpace(line))
			continue
		}
		script += line
	}
	flush()
	return out
}

// serve starts a node and answers its ready line. A node that the page killed
// before is gone by then, as it is for somebody who types.
func (r *reader) serve(line string) string {
	r.t.Helper()
	if n := len(r.nodes); n > 0 {
		gone := time.AfterFunc(10*time.Second, func() {
			r.t.Errorf("%s: the node before it was not ended by the page", line)
			_ = r.nodes[n-1].Process.Kill()
		})
		_ = r.nodes[n-1].Wait()
		gone.Stop()
	}
	cmd := r.command(r.t.Context(), "bash", "-c", "exec "+line)
	log := &tail{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.nodes = append(r.nodes, cmd)
	watchdog := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	ready, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", line, err, log)
	}
	r.t.Logf("%s\n%s", line, ready)
	return ready
}

// background: a node that a shell starts beside itself.
var background = regexp.MustCompile(`(?m)^bin/mink serve .*&$`)

// emptyDatabase is the URL of a database mink on a server of the test's own.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	server := pgtest.Start(t)
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err == nil {
		_, err = conn.Exec(t.Context(), "CREATE DATABASE mink")
		err = errors.Join(err, conn.Close(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return "postgres://postgres@" + server.Addr() + "/mink"
}

// terminal is a shell that goes on from block to block.
type terminal struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *output
	ended chan error // how it ended, when a command failed
}

// typed runs a block in the page's one shell.
func (r *reader) typed(code string) string {
	r.t.Helper()
	if r.session == nil {
		r.stop()
		r.session = r.openTerminal()
	}
	s := r.session
	before := len(s.out.String())
	const done = "-- done --"
	script := r.file("block.sh", code)
	if _, err := fmt.Fprintf(s.in, ". '%s' </dev/null; echo '%s'\n", script, done); err != nil {
		r.t.Fatal(err)
	}
	deadline := time.After(soon)
	for {
		if text, _, found := strings.Cut(s.out.String()[before:], done+"\n"); found {
			r.t.Logf("%s\n%s", code, text)
			return text
		}
		select {
		case err := <-s.ended:
			r.session = nil
			r.t.Fatalf("%s: %v\n%s", code, err, s.out.String()[before:])
		case <-deadline:
			r.t.Fatalf("%s: not done within %s\n%s", code, soon, s.out.String()[before:])
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *reader) openTerminal() *terminal {
	r.t.Helper()
	s := &terminal{cmd: r.command(context.Background(), "bash", "-euo", "pipefail", "-s"), out: &output{}, ended: make(chan error, 1)}
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its jobs end with it
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		r.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	return s
}

// stop ends the nodes that the page left running.
func (r *reader) stop() {
	if s := r.session; s != nil {
		r.session = nil
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		<-s.ended
	}
	for _, cmd := range r.nodes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	r.nodes = nil
}

// output is what a process prints while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// interrupted runs a command that goes on for ever, feeds it until it prints,
// and ends it as Ctrl-C does.
func (r *reader) interrupted(line, fedBy string) string {
	r.t.Helper()
	cmd := r.command(r.t.Context(), "bash", "-c", "exec "+line)
	out, errOut := &output{}, &output{}
	cmd.Stdout, cmd.Stderr = out, errOut
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	eventually(r.t, "output of "+line, func() bool {
		r.shell(fedBy)
		return out.String() != ""
	})
	_ = cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err != nil {
		r.t.Errorf("%s, interrupted: %v\n%s", line, err, errOut)
	}
	return out.String()
}
