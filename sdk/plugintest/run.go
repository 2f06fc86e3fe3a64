package plugintest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/mink-project/mink/sdk/catalog/catalogtest"
	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/internal/recorder"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

// Request says what to run a kit on.
type Request struct {
	Host host.Config // Kind is found by asking the executable
	// Options and URI configure the plugin. Every check gets a place of its own: in
	// both, {dir} stands for a new empty directory and {name} for a new name of
	// a-z, 0-9 and -. A sink needs one of them among its options, an object store
	// one in its URI or options; in a catalog a check has namespaces of its own.
	Options map[string]string
	URI     string         // of an object store
	Only    *regexp.Regexp // names of the checks to run; nil: all
	// CheckTimeout bounds one check. Default 2 minutes.
	CheckTimeout time.Duration
}

// Result is what became of one check.
type Result struct {
	Name    string        `json:"check"`
	Verdict string        `json:"verdict"` // Passed, Failed, NotApplicable
	Text    string        `json:"text,omitempty"`
	Took    time.Duration `json:"took_ns"`
}

// The verdicts.
const (
	Passed        = "ok"
	Failed        = "FAILED"
	NotApplicable = "does not apply"
)

// ErrRequest is a request that cannot be run as it stands.
var ErrRequest = errors.New("invalid")

// Run describes the executable and runs the kit of its kind; report gets each
// result as it comes. The error is of what comes before the checks.
func Run(ctx context.Context, req Request, report func(Result)) (plugin.Manifest, error) {
	m, err := host.Describe(ctx, req.Host.Path)
	if err != nil {
		return m, err
	}
	if _, err := m.Resolve(req.Options); err != nil {
		return m, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	places := strings.Contains(req.URI, dirWord) || strings.Contains(req.URI, nameWord)
	for _, v := range req.Options {
		places = places || strings.Contains(v, dirWord) || strings.Contains(v, nameWord)
	}
	if !places && m.Kind != plugin.KindCatalog {
		return m, fmt.Errorf("%w: every check needs an empty place: let an option%s contain %s, a new directory, or %s, a new name",
			ErrRequest, map[bool]string{true: " or the URI"}[m.Kind == plugin.KindObjectStore], dirWord, nameWord)
	}
	root, err := os.MkdirTemp("", "mink-plugin-test-")
	if err != nil {
		return m, err
	}
	defer func() { _ = os.RemoveAll(root) }()
	if req.CheckTimeout <= 0 {
		req.CheckTimeout = 2 * time.Minute
	}
	r := run{Request: req, root: root, report: report}
	switch m.Kind {
	case plugin.KindSink:
		r.sink(ctx)
	case plugin.KindObjectStore:
		if req.URI == "" {
			return m, fmt.Errorf("%w: an object store is opened by its URI: name one, such as %s://...%s", ErrRequest, m.Schemes[0], nameWord)
		}
		r.objectStore(ctx)
	case plugin.KindCatalog:
		r.catalog(ctx)
	default:
		return m, fmt.Errorf("%w: there is no conformance kit for plugins of the kind %q yet", ErrRequest, m.Kind)
	}
	return m, ctx.Err()
}

const (
	dirWord  = "{dir}"
	nameWord = "{name}"
)

type run struct {
	Request
	root   string
	places int
	report func(Result)
}

// place makes the URI and options of a new empty place.
func (r *run) place() (uri string, options map[string]string, err error) {
	r.places++
	dir := filepath.Join(r.root, fmt.Sprint(r.places))
	if err := os.Mkdir(dir, 0o750); err != nil {
		return "", nil, err
	}
	words := strings.NewReplacer(dirWord, dir, nameWord, fmt.Sprintf("mink-test-%s", strings.ToLower(rand.Text()[:10])))
	options = map[string]string{}
	for name, v := range r.Options {
		options[name] = words.Replace(v)
	}
	return words.Replace(r.URI), options, nil
}

func (r *run) wanted(ctx context.Context, name string) bool {
	return ctx.Err() == nil && (r.Only == nil || r.Only.MatchString(name))
}

func (r *run) sink(ctx context.Context) {
	for _, c := range sinktest.Checks() {
		if !r.wanted(ctx, c.Name) {
			continue
		}
		began := time.Now()
		_, options, err := r.place()
		if err != nil {
			r.report(Result{Name: c.Name, Verdict: Failed, Text: err.Error()})
			continue
		}
		target, end := ended(SinkTarget(r.Host, options))
		limited, cancel := context.WithTimeout(ctx, r.CheckTimeout)
		got := sinktest.RunCheck(limited, c, target)
		got.Text += r.overdue(limited)
		cancel()
		end()
		r.report(Result{Name: c.Name, Verdict: verdictOf(got.Failed, got.Skipped), Text: strings.TrimSpace(got.Text), Took: time.Since(began)})
	}
}

// killed are processes that a check may leave.
type killed struct {
	mu    sync.Mutex
	kills []func()
}

func (k *killed) add(kill func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kills = append(k.kills, kill)
}

func (k *killed) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kill := range k.kills {
		kill()
	}
}

// ended is a target whose processes end kills: a check that fails leaves some.
func ended(target sinktest.Target) (_ sinktest.Target, end func()) {
	var kills killed
	start := target.Start
	target.Start = func(ctx context.Context) (sink.Sink, func(), error) {
		s, kill, err := start(ctx)
		if err == nil {
			kills.add(kill)
		}
		return s, kill, err
	}
	return target, kills.end
}

func (r *run) catalog(ctx context.Context) {
	for _, c := range catalogtest.Checks() {
		if !r.wanted(ctx, c.Name) {
			continue
		}
		began := time.Now()
		_, options, err := r.place()
		if err != nil {
			r.report(Result{Name: c.Name, Verdict: Failed, Text: err.Error()})
			continue
		}
		target, end := CatalogTarget(r.Host, options)
		limited, cancel := context.WithTimeout(ctx, r.CheckTimeout)
		got := catalogtest.RunCheck(limited, c, target)
		got.Text += r.overdue(limited)
		cancel()
		end()
		r.report(Result{Name: c.Name, Verdict: verdictOf(got.Failed, got.Skipped), Text: strings.TrimSpace(got.Text), Took: time.Since(began)})
	}
}

func verdictOf(failed, skipped bool) string {
	switch {
	case failed:
		return Failed
	case skipped:
		return NotApplicable
	}
	return Passed
}

func (r *run) objectStore(ctx context.Context) {
	cfg := r.Host
	cfg.Kind = plugin.KindObjectStore
	for _, c := range objstoretest.Checks() {
		if !r.wanted(ctx, c.Name) {
			continue
		}
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, r.CheckTimeout)
		failed, text := recorder.Run(limited, func(t *recorder.T) {
			uri, options, err := r.place()
			if err != nil {
				t.Fatalf("%v", err)
			}
			r.inStore(t, cfg, uri, options, func(s objstore.Store) { c.Run(t, s) })
		})
		text += r.overdue(limited)
		cancel()
		r.report(Result{Name: c.Name, Verdict: verdictOf(failed, false), Text: strings.TrimSpace(text), Took: time.Since(began)})
	}
}

// overdue says that a check was ended for its time.
func (r *run) overdue(ctx context.Context) string {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ""
	}
	return fmt.Sprintf("\nthe check was given up after %v: a call may hang", r.CheckTimeout)
}

func (r *run) inStore(t *recorder.T, cfg host.Config, uri string, options map[string]string, check func(objstore.Store)) {
	p, err := host.Launch(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer func() { _ = p.Kill() }()
	s, err := p.OpenStore(t.Context(), uri, options)
	if err != nil {
		t.Fatalf("open %s: %v", uri, err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	check(s)
}
