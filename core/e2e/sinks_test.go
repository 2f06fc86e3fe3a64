package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// sinkRow is a row of the tables that sinks get.
type sinkRow struct {
	ID   int64   `mink:"id"`
	Part int32   `mink:"part"`
	Note *string `mink:"note"`
}

func (r sinkRow) String() string {
	note := "null"
	if r.Note != nil {
		note = *r.Note
	}
	return fmt.Sprintf("%d|%d|%s", r.ID, r.Part, note)
}

var sinkColumns = columns("id BIGINT NOT NULL", "part INT", "note STRING")

// installSink builds a sink of sdk/examples and installs it for nodes with the
// answered --plugin-dir.
func installSink(t *testing.T, name string) (dir string) {
	t.Helper()
	return installPlugin(t, "sdk/examples/sink-"+name)
}

// installPlugin builds the plugin in a folder of the repository that has its kind and name,
// and installs it as installSink does.
func installPlugin(t *testing.T, folder string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, "built", "mink-plugin-"+filepath.Base(folder))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./"+folder)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir = filepath.Join(dir, "installed")
	run(t, nil, minkBinary(t), "plugin", "install", path, "--plugin-dir", dir)
	return dir
}

// sinkLoad writes rows to a log table and a primary-key table until stop is done. Rows
// with the same note do not come twice in the log table: the writer is idempotent.
func sinkLoad(ctx, stop context.Context, c *client.Client, log, keyed string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		w, err := client.NewTypedWriter[sinkRow](ctx, c, log, client.DefaultWriter())
		if err != nil {
			return err
		}
		for n := int64(0); stop.Err() == nil; n += 5 {
			var rows []sinkRow
			for i := range int64(5) {
				note := fmt.Sprintf("row '%d' \\ \"x\"\n", n+i)
				rows = append(rows, sinkRow{n + i, int32(n % 7), &note})
			}
			a, err := w.AppendRows(ctx, rows...)
			if err == nil {
				err = a.Wait(ctx)
			}
			if err != nil {
				return fmt.Errorf("append: %w", err)
			}
			pause(stop, 5*time.Millisecond)
		}
		return w.Close(ctx)
	})
	g.Go(func() error {
		u, err := client.NewTypedUpsertWriter[sinkRow](ctx, c, keyed, client.DefaultUpsert())
		if err != nil {
			return err
		}
		for n := int64(0); stop.Err() == nil; n++ {
			var rows []sinkRow
			for i := range int64(7) {
				note := fmt.Sprintf("version %d", n)
				r := sinkRow{ID: (n*3 + i*11) % 97, Part: int32(n), Note: &note}
				if n%4 == 0 {
					r.Note = nil
				}
				rows = append(rows, r)
			}
			a, err := u.UpsertRows(ctx, rows...)
			if err == nil && n%3 == 0 {
				a, err = u.DeleteRows(ctx, sinkRow{ID: n % 97}, sinkRow{ID: (n + 40) % 97})
			}
			if err == nil {
				err = a.Wait(ctx)
			}
			if err != nil {
				return fmt.Errorf("upsert: %w", err)
			}
			pause(stop, 5*time.Millisecond)
		}
		return u.Close(ctx)
	})
	return g.Wait()
}

// sourceRows are the rows of both tables as Mink has them, with how often.
func sourceRows(ctx context.Context, t *testing.T, c *client.Client, log, keyed string) (inLog, inKeyed map[string]int) {
	t.Helper()
	inLog, inKeyed = map[string]int{}, map[string]int{}
	for b, err := range c.Scan(ctx, client.ScanRequest{Table: log, Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		rows, err := client.Decode[sinkRow](b.Record)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			inLog[r.String()]++
		}
	}
	for b, err := range c.ScanSnapshot(ctx, client.SnapshotRequest{Table: keyed, Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		rows, err := client.Decode[sinkRow](b.Record)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			inKeyed[r.String()]++
		}
	}
	return inLog, inKeyed
}

// sinkHasAll waits until the sink has everything of a table that was written before.
func (n *node) sinkHasAll(table, sinkName string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("sink %s has all of %s", sinkName, table), func() bool {
		var d api.Table
		if err := json.Unmarshal(n.mink(nil, "--json", "table", "describe", table), &d); err != nil {
			n.t.Fatal(err)
		}
		i := slices.IndexFunc(d.Sinks, func(s api.TableSink) bool { return s.Sink == sinkName })
		if i < 0 {
			n.t.Fatalf("%s has no sink %s: %+v", table, sinkName, d.Sinks)
		}
		return d.Sinks[i].LagOffsets == 0
	})
}

// everythingUploaded waits until the log's committed end is where writers stand: an
// orderly stop uploads all.
func (n *node) everythingUploaded() {
	n.t.Helper()
	n.stop()
	n.start()
}

func compareRows(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	var wrong []string
	for r, n := range want {
		if got[r] != n {
			wrong = append(wrong, fmt.Sprintf("%q %d times, want %d", r, got[r], n))
		}
	}
	for r, n := range got {
		if want[r] == 0 {
			wrong = append(wrong, fmt.Sprintf("%q %d times, want none", r, n))
		}
	}
	slices.Sort(wrong)
	t.Errorf("%s: %d rows are wrong of %d: %s", what, len(wrong), len(want), strings.Join(wrong[:min(5, len(wrong))], "; "))
}

// jsonlRows reads what sink-jsonl has of a table: of a log table every row, of one with a
// primary key the latest row of each key. Offsets of a bucket must not come twice.
func jsonlRows(t *testing.T, dir, database, table string, keyed bool) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, database, table+"-*", "rounds", "*", "rows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	rows, latest, seen := map[string]int{}, map[int64]string{}, map[string]bool{}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r struct {
				Bucket string  `json:"__bucket"`
				Offset *int64  `json:"__offset"`
				Change string  `json:"__change"`
				ID     int64   `json:"id"`
				Part   int32   `json:"part"`
				Note   *string `json:"note"`
			}
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Fatalf("%s: %v: %s", name, err, lines.Bytes())
			}
			if r.Offset != nil {
				at := fmt.Sprintf("%s@%d", r.Bucket, *r.Offset)
				if seen[at] {
					t.Errorf("%s: offset %s is there twice", name, at)
				}
				seen[at] = true
			}
			text := sinkRow{r.ID, r.Part, r.Note}.String()
			switch {
			case !keyed:
				rows[text]++
			case r.Change == mink.ChangeDelete.String() || r.Change == mink.ChangeUpdateBefore.String():
				delete(latest, r.ID)
			default:
				latest[r.ID] = text
			}
		}
	}
	for _, text := range latest {
		rows[text]++
	}
	return rows
}

// sinkPlugin is the process of a sink's plugin; false: none serves.
func (n *node) sinkPlugin(name string) (api.PluginStats, bool) {
	n.t.Helper()
	var stats api.Stats
	out, _, err := n.tryMink(nil, "--json", "cluster", "stats", "--node", "1")
	if err != nil || json.Unmarshal(out, &stats) != nil {
		return api.PluginStats{}, false
	}
	i := slices.IndexFunc(stats.Plugins, func(p api.PluginStats) bool { return p.Name == name && p.Kind == "sink" })
	if i < 0 {
		return api.PluginStats{}, false
	}
	return stats.Plugins[i], stats.Plugins[i].PID != 0
}

// A sink of the configuration gets every row once, through kill -9 of its process and of
// the node; a table has two of them, and each has everything.
func TestSinksThroughKills(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	n := newNode(t, "--plugin-dir", installSink(t, "jsonl"), "--wal-upload-interval", "100ms", "--lake-catalog", "off", "--kv-snapshot-interval", "2s",
		"--sinks", fmt.Sprintf("files.plugin=jsonl,files.options.dir=%s,more.plugin=jsonl,more.options.dir=%s", first, second))
	n.start()
	n.createTable("db.log", sinkColumns, "--bucket-count", "3", "--sink", "files,freshness=1s", "--sink", "more,freshness=2s")
	n.createTable("db.keyed", sinkColumns, "--primary-key", "id", "--bucket-key", "id", "--bucket-count", "2", "--sink", "files,freshness=1s", "--sink", "more,freshness=2s")
	c := n.client()
	stop, halt := context.WithCancel(t.Context())
	defer halt()
	done := make(chan error, 1)
	go func() { done <- sinkLoad(t.Context(), stop, c, "db.log", "db.keyed") }()
	for round := range 8 {
		pause(stop, time.Duration(300+rand.IntN(1500))*time.Millisecond)
		if round%4 == 3 {
			p, serves := n.sinkPlugin("jsonl")
			n.kill()
			if serves {
				eventually(t, "the plugin's process ends with its node", func() bool { return ended(p.PID) })
			}
			n.start()
			continue
		}
		if p, serves := n.sinkPlugin("jsonl"); serves {
			if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	halt()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	n.everythingUploaded()
	inLog, inKeyed := sourceRows(t.Context(), t, c, "db.log", "db.keyed")
	if len(inLog) < 100 || len(inKeyed) < 20 {
		t.Fatalf("the load wrote %d and %d rows only", len(inLog), len(inKeyed))
	}
	for name, dir := range map[string]string{"files": first, "more": second} {
		n.sinkHasAll("db.log", name)
		n.sinkHasAll("db.keyed", name)
		compareRows(t, "log at "+name, jsonlRows(t, dir, "db", "log", false), inLog)
		compareRows(t, "keyed at "+name, jsonlRows(t, dir, "db", "keyed", true), inKeyed)
	}
	text := string(n.mink(nil, "table", "describe", "db.log"))
	for _, want := range []string{"files", "more", "log waits", "1s", "2s"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	n.mink(nil, "table", "alter", "db.log", "--remove-sink", "more")
	if text := string(n.mink(nil, "table", "describe", "db.log", "--json")); strings.Contains(text, `"sink": "more"`) || !strings.Contains(text, `"files"`) {
		t.Errorf("after --remove-sink more:\n%s", text)
	}
	n.mink(nil, "table", "drop", "db.keyed")
	eventually(t, "the dropped table is gone at both sinks", func() bool {
		a, aErr := filepath.Glob(filepath.Join(first, "db", "keyed-*"))
		b, bErr := filepath.Glob(filepath.Join(second, "db", "keyed-*"))
		return errors.Join(aErr, bErr) == nil && len(a)+len(b) == 0
	})
	n.stop()
}

// What a node says of sinks that are not there, and that a table waits for one.
func TestSinksOfTheConfiguration(t *testing.T) {
	t.Parallel()
	dir, plugins := t.TempDir(), installSink(t, "jsonl")
	n := newNode(t, "--plugin-dir", plugins, "--wal-upload-interval", "100ms", "--lake-catalog", "off")
	with := []string{"--sinks", "files.plugin=jsonl,files.options.dir=" + dir}
	refused := func(want string, flags ...string) {
		t.Helper()
		cmd := n.command(append(flags, "--check-config")...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, want %q:\n%s", flags, err, want, out)
		}
	}
	refused(`no plugin of the kind sink is named "jsnl"`, "--sinks", "files.plugin=jsnl")
	refused(`has no option "dri"; did you mean dir`, "--sinks", "files.plugin=jsonl,files.options.dri=/x")
	refused("the option dir is not set", "--sinks", "files.plugin=jsonl")
	refused("the name is the lake's", "--sinks", "lake.plugin=jsonl")
	refused("plugin is missing", "--sinks", "files.options.dir=/x")
	if out, err := n.command(append(with, "--check-config")...).CombinedOutput(); err != nil || !strings.Contains(string(out), "sinks.files: plugin jsonl") {
		t.Errorf("%v\n%s", err, out)
	}
	base := n.flags
	n.flags = append(slices.Clone(base), with...)
	n.start()
	n.createTable("db.log", sinkColumns)
	if _, errOut, err := n.tryMink(nil, "table", "alter", "db.log", "--sink", "filez"); err == nil || !strings.Contains(string(errOut), "did you mean files?") {
		t.Errorf("an unknown sink: %v\n%s", err, errOut)
	}
	n.mink(nil, "table", "alter", "db.log", "--sink", "files,freshness=1s")
	n.mink([]byte(`{"id":1,"part":2,"note":"a"}`+"\n"), "write", "db.log")
	n.stop()
	n.flags = base // a node without the sink: the rows wait
	n.start()
	n.mink([]byte(`{"id":2,"part":2,"note":"b"}`+"\n"), "write", "db.log")
	eventually(t, "the node says that it lacks the sink", func() bool {
		return strings.Contains(string(n.mink(nil, "cluster", "stats", "--json")), "has no sink files: add [sinks.files]")
	})
	n.stop()
	n.flags = append(slices.Clone(base), with...)
	n.start()
	n.sinkHasAll("db.log", "files")
	compareRows(t, "log", jsonlRows(t, dir, "db", "log", false), map[string]int{"1|2|a": 1, "2|2|b": 1})
	n.stop()
}
