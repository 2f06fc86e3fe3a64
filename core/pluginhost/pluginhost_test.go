package pluginhost_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/host/hosttest"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

func TestMain(m *testing.M) {
	hosttest.Main()
	os.Exit(m.Run())
}

// start makes a host over a directory with the plugins, which leaves nothing
// behind.
func start(t *testing.T, change func(*pluginhost.Config), behaviours ...string) (h *pluginhost.Host, dir string) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	dir = t.TempDir()
	for _, b := range behaviours {
		hosttest.Install(t, dir, b)
	}
	cfg := pluginhost.Default()
	cfg.Dirs = []string{dir}
	cfg.HealthInterval = 50 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	h, err := pluginhost.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t, ignore)
	})
	return h, dir
}

func open(t *testing.T, h *pluginhost.Host, uri string) objstore.Store {
	t.Helper()
	s, err := h.OpenStore(t.Context(), uri, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(ctx context.Context, s objstore.Store, key, value string) error {
	_, err := s.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{[]byte(value)}, CreateOnly: true})
	return err
}

func pid(t *testing.T, h *pluginhost.Host) int {
	t.Helper()
	st := h.Stats()
	if len(st) != 1 {
		t.Fatalf("%+v", st)
	}
	return st[0].PID
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestSupervisedStoreConforms(t *testing.T) {
	h, _ := start(t, nil, "mem")
	keep := open(t, h, "mem://keep") // the process stays
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, h, "mem://"+t.Name()) })
	if st := h.Stats(); len(st) != 1 || st[0].Restarts != 0 || st[0].InFlight != 0 {
		t.Errorf("%+v", st)
	}
	if err := keep.Close(); err != nil {
		t.Error(err)
	}
}

// valueOf is large enough for shared memory.
func valueOf(key string) string { return strings.Repeat(key+"|", 150<<10/(len(key)+1)) }

// What was acknowledged before a kill is there after it, whoever writes on
// meanwhile; every call ends, and the store serves again soon.
func TestKilledPluginLosesNothing(t *testing.T) {
	const kills, writers = 12, 4
	h, _ := start(t, nil, "dir")
	s := open(t, h, "dir://"+t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	acked := make([][]string, writers)
	for w := range writers {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("w%d/%d", w, i)
				err := put(ctx, s, key, valueOf(key))
				switch {
				case err == nil:
					acked[w] = append(acked[w], key)
				case !errors.Is(err, objstore.ErrUnavailable) && !errors.Is(err, objstore.ErrUnknownOutcome) && ctx.Err() == nil:
					t.Errorf("put %s: %v", key, err)
				}
			}
		})
	}
	var worst time.Duration
	for k := range kills {
		p := pid(t, h)
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		waitFor(t, "a new process", func() bool { now := pid(t, h); return now != 0 && now != p })
		if _, err := s.List(t.Context(), objstore.ListRequest{Limit: 1}); err != nil {
			t.Errorf("kill %d: %v", k, err)
		}
		worst = max(worst, time.Since(began))
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	wg.Wait()
	n := 0
	for _, keys := range acked {
		for _, key := range keys {
			got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Length: -1})
			if err != nil || string(got.Data) != valueOf(key) {
				t.Fatalf("%s was acknowledged: %d bytes, %v", key, len(got.Data), err)
			}
			n++
		}
	}
	st := h.Stats()[0]
	t.Logf("%d writes acknowledged over %d kills; serving again after at most %v; %d failures", n, kills, worst, st.Operations[0].Failures)
	if st.Restarts != kills || n == 0 {
		t.Errorf("%d restarts, %d writes", st.Restarts, n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestStoppedPluginIsReplaced(t *testing.T) {
	h, _ := start(t, func(c *pluginhost.Config) { c.HealthTimeout = 300 * time.Millisecond }, "dir")
	s := open(t, h, "dir://"+t.TempDir())
	if err := put(t.Context(), s, "before", "x"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid(t, h), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	failed := 0
	waitFor(t, "an answer after the stop", func() bool { // no deadline of our own
		err := put(context.Background(), s, fmt.Sprintf("k%d", failed), "x")
		if err == nil {
			return h.Stats()[0].Restarts == 1
		}
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatalf("put into a stopped plugin: %v", err)
		}
		failed++
		return false
	})
	if failed == 0 {
		t.Error("no call met the stopped process")
	}
	if text := h.Stats()[0].LastError; !strings.Contains(text, "health check") {
		t.Errorf("the reason is %q", text)
	}
	if _, err := s.Head(t.Context(), "before"); err != nil {
		t.Error(err)
	}
}

func TestLeakingPluginIsReplaced(t *testing.T) {
	h, _ := start(t, func(c *pluginhost.Config) { c.MemoryMax = 200 << 20 }, "leak")
	s := open(t, h, "leak://")
	waitFor(t, "a replacement", func() bool {
		err := put(t.Context(), s, fmt.Sprintf("k%d", time.Now().UnixNano()), "x")
		if err != nil && !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatal(err)
		}
		return h.Stats()[0].Restarts > 0
	})
	if text := h.Stats()[0].LastError; !strings.Contains(text, "too much memory") || !strings.Contains(text, "the limit is 200 MiB") {
		t.Errorf("the reason is %q", text)
	}
}

func TestPluginThatCannotStartAgainIsSaid(t *testing.T) {
	h, dir := start(t, func(c *pluginhost.Config) {
		c.CallWait = 300 * time.Millisecond
		c.RestartWaitMax = 100 * time.Millisecond
	}, "mem")
	s := open(t, h, "mem://")
	path := filepath.Join(dir, "mink-plugin-objstore-mem")
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid(t, h), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the reason", func() bool {
		err := put(t.Context(), s, "k", "x")
		if err == nil || !errors.Is(err, objstore.ErrUnavailable) {
			return false
		}
		return strings.Contains(err.Error(), "without its executable")
	})
	if st := h.Stats()[0]; st.PID != 0 {
		t.Errorf("%+v", st)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the mended plugin", func() bool { return put(t.Context(), s, "again", "x") == nil })
}

func TestUpgradedPluginIsTakenAtItsNextStart(t *testing.T) {
	h, dir := start(t, nil, "mem")
	s := open(t, h, "mem://")
	path := filepath.Join(dir, "mink-plugin-objstore-mem.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A wrong checksum keeps it from starting, until the next install.
	pinned := regexp.MustCompile(`"sha256": "[0-9a-f]{64}"`).ReplaceAllString(string(data), `"sha256": "`+strings.Repeat("0", 64)+`"`)
	if err := os.WriteFile(path, []byte(pinned), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid(t, h), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the refusal", func() bool { return strings.Contains(h.Stats()[0].LastError, "checksum differs") })
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the good one", func() bool { return put(t.Context(), s, "k", "x") == nil })
}

// A store that cannot be opened again is no fault of the request that meets it:
// ErrInvalid would make the engine give up for good.
func TestStoreThatCannotBeOpenedAgainIsUnavailable(t *testing.T) {
	t.Setenv("TEST_PLUGIN_REGION", "here")
	h, _ := start(t, nil, "opts")
	options := map[string]string{"token": "right"}
	s, err := h.OpenStore(t.Context(), "opts://", options)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_PLUGIN_REGION", "elsewhere")
	p := pid(t, h)
	if err := syscall.Kill(p, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a new process", func() bool { now := pid(t, h); return now != 0 && now != p })
	err = put(t.Context(), s, "k", "x")
	if !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), "elsewhere") {
		t.Fatal(err)
	}
}

func TestOpenErrorsAreTheStarts(t *testing.T) {
	h, _ := start(t, nil, "opts", "exit", "sink")
	for _, c := range []struct {
		uri     string
		options map[string]string
		want    string
	}{
		{"opts://", map[string]string{"token": "wrong"}, "the token is wrong"},
		{"opts://", map[string]string{"tokne": "x"}, `no option "tokne"`},
		{"exit://", nil, "the moon is in the wrong house"},
		{"sink://", nil, `one of the kind "objstore" is wanted`},
		{"nowhere", nil, "want a URI"},
	} {
		if _, err := h.OpenStore(t.Context(), c.uri, c.options); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.uri, err)
		}
	}
	if st := h.Stats(); len(st) != 0 {
		t.Errorf("processes are left: %+v", st)
	}
}

func TestStoresShareTheProcessOfTheirPlugin(t *testing.T) {
	h, _ := start(t, nil, "mem")
	a, b := open(t, h, "mem://a"), open(t, h, "mem://b")
	if err := put(t.Context(), a, "k", "of a"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("the stores share their objects: %v", err)
	}
	p := pid(t, h)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if pid(t, h) != p {
		t.Error("the process went with the first store")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if st := h.Stats(); len(st) != 0 {
		t.Errorf("the process outlives its last store: %+v", st)
	}
	if err := syscall.Kill(p, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is there: %v", p, err)
	}
	if _, err := a.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("a call after Close: %v", err)
	}
}

func TestClosedHostFailsWhatIsOpen(t *testing.T) {
	h, _ := start(t, nil, "mem")
	s := open(t, h, "mem://")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), s, "k", "x"); !errors.Is(err, objstore.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := h.OpenStore(t.Context(), "mem://", nil); !errors.Is(err, objstore.ErrUnavailable) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestStatsCountWhatPasses(t *testing.T) {
	h, _ := start(t, nil, "mem")
	s := open(t, h, "mem://")
	if err := put(t.Context(), s, "k", "12345"); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), s, "k", "12345"); !errors.Is(err, objstore.ErrAlreadyExists) {
		t.Fatal(err)
	}
	if _, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Offset: 1, Length: 3}); err != nil {
		t.Fatal(err)
	}
	st := h.Stats()[0]
	puts, gets := st.Operations[0], st.Operations[2]
	if puts.Name != "put" || puts.Calls != 2 || puts.Failures != 0 || puts.Sent != 10 || puts.Time <= 0 || puts.Quantile(0.99) < puts.Quantile(0.5) || puts.Quantile(0.5) == 0 {
		t.Errorf("%+v", puts)
	}
	if gets.Name != "get" || gets.Calls != 1 || gets.Received != 3 {
		t.Errorf("%+v", gets)
	}
	if st.PID == 0 || st.RSS < 1<<20 || st.Version != "1.0.0" || st.Name != "mem" || st.Restarts != 0 {
		t.Errorf("%+v", st)
	}
}
