package host_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/host/hosttest"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
	"github.com/mink-project/mink/sdk/plugin"
)

func TestMain(m *testing.M) {
	hosttest.Main()
	if path := os.Getenv("TEST_HOST_HOLDS"); path != "" {
		hold(path)
	}
	os.Exit(m.Run())
}

// records keeps what is logged.
type records struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *records) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *records) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// wantNothingLeft checks at the test's end that no goroutine, process or
// directory is left.
func wantNothingLeft(t *testing.T) {
	t.Helper()
	shortTemp(t)
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		goleak.VerifyNone(t, ignore)
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "mink-socket-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if kids := childrenOf(os.Getpid()); len(kids) > 0 {
			t.Errorf("processes left: %v", kids)
		}
	})
}

// shortTemp gives the test a temporary directory in which a socket's name fits.
func shortTemp(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mp") //nolint:usetesting // its names are too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
}

// childrenOf are the ids of a process's living children; none where there is no
// /proc.
func childrenOf(pid int) (kids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			kid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // a number, as the pattern says
			kids = append(kids, kid)
		}
	}
	return kids
}

func launch(t *testing.T, behaviour string, change ...func(*host.Config)) *host.Process {
	t.Helper()
	cfg := host.Config{Path: hosttest.Install(t, t.TempDir(), behaviour)}
	for _, c := range change {
		c(&cfg)
	}
	p, err := host.Launch(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func open(t *testing.T, p *host.Process, uri string) objstore.Store {
	t.Helper()
	s, err := p.OpenStore(t.Context(), uri, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStoreConformsInAProcessOfItsOwn(t *testing.T) {
	for name, change := range map[string]func(*host.Config){
		"TLS":           func(*host.Config) {},
		"plaintext":     func(c *host.Config) { c.Plaintext = true },
		"shared memory": func(c *host.Config) { c.SharedMemory = true },
	} {
		t.Run(name, func(t *testing.T) {
			wantNothingLeft(t)
			p := launch(t, "mem", change)
			objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, p, "mem://"+t.Name()) })
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if err := p.Err(); err == nil || !strings.Contains(err.Error(), "exit status 0") {
				t.Errorf("a plugin that was asked to end: %v", err)
			}
		})
	}
}

func TestDirectoryStoreConformsInAProcessOfItsOwn(t *testing.T) {
	p := launch(t, "dir", func(c *host.Config) { c.SharedMemory = true })
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, p, "dir://"+t.TempDir()) })
}

func TestBadPluginsFailTheStartWithAReason(t *testing.T) {
	for _, c := range []struct {
		behaviour string
		change    func(*host.Config)
		want      []string
	}{
		{"sink", func(c *host.Config) { c.Kind = plugin.KindObjectStore }, []string{`sink is a plugin of the kind "sink"; one of the kind "objstore" is wanted`}},
		{"mem", func(c *host.Config) { c.SHA256 = strings.Repeat("ab", 32) }, []string{"checksum differs", "with abab", "mink plugin install again"}},
		{"hang", nil, []string{"did not answer within 1s"}},
		{"mute", nil, []string{"closed its standard output"}},
		{"deaf", nil, []string{"did not answer within 1s"}},
		{"garbage", nil, []string{"it is no Mink plugin", `not | a | handshake`}},
		{"flood", nil, []string{"it is no Mink plugin"}},
		{"exit", nil, []string{"it ended before it was ready", "exit status 7", "the moon is in the wrong house"}},
		{"odd", nil, []string{"it ended before it was ready", "exit status 7"}},
		{"leaves", nil, []string{"it ended before it was ready", "exit status 3"}},
		{"future", nil, []string{"speaks plugin protocol 3 and this Mink speaks 1: upgrade Mink"}},
		{"past", nil, []string{"speaks plugin protocol 0 and this Mink speaks 1: upgrade the plugin"}},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			wantNothingLeft(t)
			cfg := host.Config{Path: hosttest.Install(t, t.TempDir(), c.behaviour), StartTimeout: time.Second}
			if c.change != nil {
				c.change(&cfg)
				cfg.StartTimeout = 0
			}
			_, err := host.Launch(t.Context(), cfg)
			if err == nil {
				t.Fatal("it started")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if !strings.Contains(err.Error(), filepath.Base(cfg.Path)) || strings.Contains(err.Error(), "\n") {
				t.Errorf("want one line with the plugin's name: %v", err)
			}
		})
	}
}

func TestWhatIsNoExecutableFailsTheStart(t *testing.T) {
	wantNothingLeft(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "text")
	if err := os.WriteFile(script, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := host.Launch(t.Context(), host.Config{Path: script})
	if err == nil || !strings.Contains(err.Error(), "chmod +x") {
		t.Error(err)
	}
	if err := os.Chmod(script, 0o700); err != nil { //nolint:gosec // to be executed
		t.Fatal(err)
	}
	_, err = host.Launch(t.Context(), host.Config{Path: script})
	if err == nil || !strings.Contains(err.Error(), "no executable for this machine") {
		t.Error(err)
	}
	_, err = host.Launch(t.Context(), host.Config{Path: filepath.Join(dir, "absent")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Skip("no cat here")
	}
	_, err = host.Launch(t.Context(), host.Config{Path: cat, StartTimeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "did not answer within 1s") {
		t.Error(err)
	}
}

func TestStartIsGivenUpWithItsContext(t *testing.T) {
	wantNothingLeft(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := host.Launch(ctx, host.Config{Path: hosttest.Install(t, t.TempDir(), "hang")})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// A context that is over before the process is there must end its start too.
func TestStartUnderAnEndedContextIsGivenUp(t *testing.T) {
	wantNothingLeft(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := host.Launch(ctx, host.Config{Path: hosttest.Install(t, t.TempDir(), "hang")}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// What lies in the temporary directory under a similar name is somebody's: such as
// the skeleton of a plugin, which is called mink-plugin-KIND-NAME.
func TestDirectoriesOfOthersAreNotSwept(t *testing.T) {
	shortTemp(t)
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"mink-plugin-sink-mine", "mink-plugin-1", "mink-socket-mine", "mink-socket-"} {
		dir := filepath.Join(os.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "main.go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
		launch(t, "mem")
		if _, err := os.Stat(filepath.Join(dir, "main.go")); err != nil {
			t.Errorf("a start removed a directory that no host made: %v", err)
		}
	}
}

// As many calls as a plugin takes at once, none of which is answered, must not let
// a plugin that works look dead.
func TestHealthIsAnsweredUnderManySlowCalls(t *testing.T) {
	p := launch(t, "stuck")
	s := open(t, p, "stuck://")
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	memory := make([]byte, 2<<20)
	for i := range 400 {
		chunk := memory[:1+i%2*(len(memory)-1)] // one message, several
		calls.Go(func() { _, _ = s.Put(ctx, objstore.PutRequest{Key: "k", Chunks: [][]byte{chunk}}) })
	}
	time.Sleep(500 * time.Millisecond) // for the calls to be made
	if err := checkWithin(t, p, 3*time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestHostSpeaksItsNewestVersionAndTheOneBefore(t *testing.T) {
	cfg := host.WithVersions(host.Config{Path: hosttest.Install(t, t.TempDir(), "mem")}, 3, 2, 1)
	p, err := host.Launch(t.Context(), cfg)
	if err != nil {
		t.Fatalf("a plugin of version 1 with a host that still speaks it: %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	_, err = host.Launch(t.Context(), host.WithVersions(cfg, 3, 2))
	var version *host.VersionError
	if !errors.As(err, &version) || !strings.Contains(err.Error(), "speaks plugin protocol 1 and this Mink speaks 2 and 3: upgrade the plugin") {
		t.Fatal(err)
	}
}

func TestPluginGetsOnlyTheEnvironmentItNeeds(t *testing.T) {
	t.Setenv("TEST_PLUGIN_REGION", "here")
	t.Setenv("TEST_SECRET", "x")
	p := launch(t, "opts", func(c *host.Config) { c.Env = []string{"TEST_PLUGIN_*"} })
	if _, err := p.OpenStore(t.Context(), "opts://", map[string]string{"token": "right"}); err != nil {
		t.Fatal(err)
	}
	_, err := p.OpenStore(t.Context(), "opts://", map[string]string{"token": "wrong"})
	if !errors.Is(err, objstore.ErrUnauthorized) || !strings.Contains(err.Error(), "the token is wrong") {
		t.Error(err)
	}
	_, err = p.OpenStore(t.Context(), "opts://", map[string]string{"tokne": "right"})
	if !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), `has no option "tokne"; did you mean token?`) {
		t.Error(err)
	}
	bare := launch(t, "opts")
	if _, err = bare.OpenStore(t.Context(), "opts://", map[string]string{"token": "right"}); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("variables came that nobody let through: %v", err)
	}
}

func TestNodesOwnVariablesReachNoPlugin(t *testing.T) {
	t.Setenv("MINK_META_URL", "postgres://u:secret@h/d")
	t.Setenv("TEST_PLUGIN_REGION", "here")
	env := strings.Join(host.Environment("MINK_META_URL", "M*", "TEST_PLUGIN_REGION"), "\n")
	if strings.Contains(env, "secret") || !strings.Contains(env, "TEST_PLUGIN_REGION=here") {
		t.Errorf("%s", env)
	}
}

func TestLiesAreErrorsAndDoNoHarm(t *testing.T) {
	p := launch(t, "lies")
	s := open(t, p, "lies://")
	ctx := t.Context()
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, key := range []string{"short", "long", "small", "negative"} {
		_, err := s.GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: 10})
		check("get "+key, err)
	}
	_, err := s.GetRange(ctx, objstore.GetRangeRequest{Key: "whole", Length: -1})
	check("10 bytes for the whole of 100", err)
	for _, key := range []string{"negative", "other"} {
		_, err := s.Head(ctx, key)
		check("head "+key, err)
	}
	for _, prefix := range []string{"order", "elsewhere", "empty", "many", "huge", "latin"} {
		_, err := s.List(ctx, objstore.ListRequest{Prefix: prefix})
		check("list "+prefix, err)
	}
	n := 0
	check("a page that comes again and again", objstore.All(ctx, s, "again", "", func(objstore.ObjectInfo) bool { n++; return n < 1000 }))
	if n > 1 {
		t.Errorf("the same page was walked %d times", n)
	}
	_, err = s.DeleteBatch(ctx, []string{"a"})
	check("delete", err)
	if err := p.Check(ctx); err != nil {
		t.Errorf("the connection did not survive it: %v", err)
	}
}

func TestWriteIntoAPluginThatDiesHasAnUnknownOutcome(t *testing.T) {
	var log records
	p := launch(t, "panics", func(c *host.Config) { c.Logger = log.logger() })
	s := open(t, p, "panics://")
	for _, size := range []int{10, 5 << 20} { // one message, several
		_, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{make([]byte, size)}, CreateOnly: true})
		if !errors.Is(err, objstore.ErrUnknownOutcome) || !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
	<-p.Done()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "did not think of this") {
		t.Errorf("its end: %v", err)
	}
	if _, err := s.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrUnknownOutcome) {
		t.Errorf("a read after its end: %v", err)
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR msg=\"panic: the store's author did not think of this") {
		t.Errorf("the panic is not in the log:\n%s", text)
	}
}

func TestDeadlineEndsACallThatHangs(t *testing.T) {
	p := launch(t, "stuck")
	s := open(t, p, "stuck://")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := s.Put(ctx, objstore.PutRequest{Key: "k"})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, objstore.ErrUnknownOutcome) {
		t.Fatal(err)
	}
}

func checkWithin(t *testing.T, p *host.Process, d time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return p.Check(ctx)
}

func TestStoppedProcessIsNoticedAndKilled(t *testing.T) {
	wantNothingLeft(t)
	p := launch(t, "mem", func(c *host.Config) { c.StopTimeout = 300 * time.Millisecond })
	s := open(t, p, "mem://")
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); checkWithin(t, p, 300*time.Millisecond) == nil; { // the signal takes a moment
		if time.Now().After(deadline) {
			t.Fatal("a stopped process is healthy")
		}
	}
	call := make(chan error, 1)
	go func() {
		_, err := s.Put(context.Background(), objstore.PutRequest{Key: "k"})
		call <- err
	}()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-call:
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a call without a deadline hangs after the process's end")
	}
}

func TestPluginThatDoesNotCloseIsKilled(t *testing.T) {
	wantNothingLeft(t)
	p := launch(t, "stuck", func(c *host.Config) { c.StopTimeout = 200 * time.Millisecond })
	open(t, p, "stuck://")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestUsageIsTheProcesss(t *testing.T) {
	p := launch(t, "leak")
	s := open(t, p, "leak://")
	before, err := p.Usage()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil || before.RSS < 1<<20 {
		t.Fatalf("%+v, %v", before, err)
	}
	for range 4 {
		if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	after, err := p.Usage()
	if err != nil || after.RSS-before.RSS < 100<<20 || after.CPU <= 0 {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Usage(); err == nil {
		t.Error("a process that is gone uses something")
	}
}

// hold is a host in a process of its own: it launches a plugin, prints its id,
// and waits to be killed.
func hold(path string) {
	p, err := host.Launch(context.Background(), host.Config{Path: path, StartTimeout: time.Hour})
	if err != nil {
		panic(err)
	}
	fmt.Println(p.PID())
	select {}
}

// holder starts a process that holds a plugin of the behaviour; out is what it
// prints.
func holder(t *testing.T, behaviour string) (cmd *exec.Cmd, out io.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "TEST_HOST_HOLDS="+hosttest.Install(t, t.TempDir(), behaviour))
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// killHolder kills the host, and waits for the plugin's end.
func killHolder(t *testing.T, cmd *exec.Cmd, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the plugin is not there: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for deadline := time.Now().Add(5 * time.Second); !gone(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the plugin outlives its host")
		}
	}
}

// A plugin that hangs never sees that its standard input ended: the kernel has to
// kill it with its host.
func TestHangingPluginEndsWhenItsHostIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a parent-death signal")
	}
	shortTemp(t)
	cmd, _ := holder(t, "deaf")
	var kids []int
	for deadline := time.Now().Add(10 * time.Second); len(kids) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the host does not start the plugin")
		}
		for _, pid := range childrenOf(cmd.Process.Pid) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.Contains(string(line), "mink-plugin-objstore-deaf") { // it is past its exec
				kids = append(kids, pid)
			}
		}
	}
	killHolder(t, cmd, kids[0])
}

func TestPluginEndsWhenItsHostIsKilled(t *testing.T) {
	shortTemp(t)
	cmd, out := holder(t, "mem")
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	killHolder(t, cmd, pid)
	// Its socket's directory goes with the next start, once it is old enough.
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "mink-socket-*"))
	if len(left) != 1 {
		t.Fatalf("directories of the killed host: %v", left)
	}
	if info, err := os.Stat(left[0]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left[0], old, old); err != nil {
		t.Fatal(err)
	}
	launch(t, "mem")
	if _, err := os.Stat(left[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// gone says whether the process has ended; whoever adopted it may not have reaped
// it yet.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestDescribe(t *testing.T) {
	path := hosttest.Install(t, t.TempDir(), "opts")
	m, err := host.Describe(t.Context(), path)
	if err != nil || m.Name != "opts" || len(m.Options) != 2 || len(m.SHA256) != 64 {
		t.Fatalf("%+v, %v", m, err)
	}
	launch(t, "opts", func(c *host.Config) { c.SHA256 = m.SHA256 })
	if _, err := host.Describe(t.Context(), "/bin/true"); err == nil || !strings.Contains(err.Error(), "manifest") {
		t.Error(err)
	}
	if _, err := host.Describe(t.Context(), "/bin/false"); err == nil || !strings.Contains(err.Error(), "does not print its manifest") {
		t.Error(err)
	}
}
