package plugintest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/plugintest"
	"github.com/mink-project/mink/sdk/sink"
)

// TestMain is a bad sink when the executable has a sink's name, and a store
// without abilities when it has a store's.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	options := []plugin.Option{{Name: "dir", Doc: "Not used."}}
	if behaviour, ok := strings.CutPrefix(name, plugin.FilePrefix+"sink-"); ok {
		plugin.Serve(plugin.Sink{
			Info: plugin.Info{Name: behaviour, Version: "1", Options: options},
			Open: func(context.Context, plugin.Config) (sink.Sink, error) { return badSink{behaviour}, nil },
		})
	}
	if strings.HasPrefix(name, plugin.FilePrefix+"objstore-") {
		plugin.Serve(plugin.ObjectStore{
			Info: plugin.Info{Name: "none", Version: "1", Schemes: []string{"none"}},
			Open: func(context.Context, plugin.Config) (objstore.Store, error) { return nil, objstore.ErrUnauthorized },
		})
	}
	os.Exit(m.Run())
}

// badSink keeps nothing, and is wrong in the way of its name.
type badSink struct{ behaviour string }

func (b badSink) Describe() sink.Description {
	return sink.Description{Name: "bad", Delivery: sink.AtLeastOnce, Changes: sink.ChangesKept, ReadBack: b.behaviour != "unread"}
}
func (b badSink) Close() error { return nil }
func (b badSink) Open(context.Context, sink.OpenRequest) (sink.Table, error) {
	return badTable{behaviour: b.behaviour}, nil
}
func (b badSink) Read(context.Context, sink.ReadRequest, func(arrow.RecordBatch, []mink.Change) bool) error {
	return nil
}

type badTable struct {
	sink.Table
	behaviour string
}

func (b badTable) Recover(context.Context, sink.RecoverRequest) (sink.RecoverResponse, error) {
	if b.behaviour == "invents" {
		return sink.RecoverResponse{Committed: sink.Committed{Round: "never-was", Fence: 1}}, nil
	}
	return sink.RecoverResponse{}, nil
}

func (b badTable) BeginRound(context.Context, sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return sink.BeginRoundResponse{}, nil
}

func (b badTable) Write(context.Context, sink.WriteRequest) (sink.WriteResponse, error) {
	switch b.behaviour {
	case "hangs":
		select {}
	case "panics":
		panic("no")
	case "exits":
		os.Exit(0)
	}
	return sink.WriteResponse{}, nil
}

func (b badTable) Prepare(context.Context, sink.PrepareRequest) (sink.PrepareResponse, error) {
	return sink.PrepareResponse{}, nil
}

func (b badTable) Commit(context.Context, sink.CommitRequest) (sink.CommitResponse, error) {
	return sink.CommitResponse{}, nil
}
func (b badTable) Close() error { return nil }

func install(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), plugin.FilePrefix+name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBadExecutablesFailInBoundedTime(t *testing.T) {
	for behaviour, want := range map[string]string{
		"forgets": "rows are missing",
		"hangs":   "the check was given up after 3s",
		"panics":  "unavailable",
		"exits":   "unavailable",
		"invents": `Recover answered round "never-was"`,
		"unread":  "nothing reads rows back",
	} {
		t.Run(behaviour, func(t *testing.T) {
			t.Parallel()
			failed, text := 0, ""
			m, err := plugintest.Run(t.Context(), plugintest.Request{
				Host: host.Config{Path: install(t, "sink-"+behaviour), Plaintext: true}, Options: map[string]string{"dir": "{dir}"},
				Only: regexp.MustCompile("^(Rounds|KilledAnywhere)$"), CheckTimeout: 3 * time.Second,
			}, func(r plugintest.Result) {
				if r.Verdict == plugintest.Failed {
					failed++
				}
				text += r.Text
			})
			if err != nil || m.Name != behaviour {
				t.Fatal(m, err)
			}
			if failed == 0 || !strings.Contains(text, want) {
				t.Errorf("%d checks failed; want %q in\n%s", failed, want, text)
			}
		})
	}
}

func TestRequestsThatCannotBeRun(t *testing.T) {
	for _, c := range []struct {
		name, uri string
		options   map[string]string
		want      string
	}{
		{"sink-forgets", "", nil, "every check needs an empty place"},
		{"sink-forgets", "", map[string]string{"dir": "/one/place"}, "every check needs an empty place"},
		{"sink-forgets", "", map[string]string{"dri": "{dir}"}, `no option "dri"`},
		{"objstore-none", "none://bucket", nil, "or the URI contain {dir}"},
	} {
		_, err := plugintest.Run(t.Context(), plugintest.Request{Host: host.Config{Path: install(t, c.name)}, URI: c.uri, Options: c.options}, func(plugintest.Result) { t.Error("a check was run") })
		if !errors.Is(err, plugintest.ErrRequest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q %v: %v, want %q", c.name, c.uri, c.options, err, c.want)
		}
	}
	var text string
	_, err := plugintest.Run(t.Context(), plugintest.Request{Host: host.Config{Path: install(t, "objstore-none")}, URI: "none://{name}", Only: regexp.MustCompile("^Delete$")}, func(r plugintest.Result) { text += r.Verdict + r.Text })
	if err != nil || !strings.Contains(text, "FAILED") || !strings.Contains(text, "not authorized") {
		t.Errorf("%v: %s", err, text)
	}
}
