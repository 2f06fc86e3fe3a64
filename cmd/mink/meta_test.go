package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/api"
)

// site is a cluster of one node and what a person does to it.
type site struct {
	t    *testing.T
	dir  string
	at   string
	stop func()
}

func newSite(t *testing.T) *site { return &site{t: t, dir: t.TempDir()} }

func (s *site) try(change func(*server.Config)) error {
	s.t.Helper()
	at, stop, err := tryNode(s.t, func(c *server.Config) {
		c.DataDir = s.dir
		c.LeaseTTL, c.CoordinatorTick, c.OrphanAge = 1e9, 1e8, 1e9 // ns
		if change != nil {
			change(c)
		}
	})
	if err == nil {
		s.at, s.stop = "grpc://"+at, stop
	}
	return err
}

func (s *site) start() {
	s.t.Helper()
	if err := s.try(nil); err != nil {
		s.t.Fatal(err)
	}
}

// mink runs a command that must succeed.
func (s *site) mink(in string, args ...string) string {
	s.t.Helper()
	code, out, errOut := run(s.t, in, append([]string{"-q", "-b", s.at}, args...)...)
	if code != 0 {
		s.t.Fatalf("mink %v: exit code %d: %s", args, code, errOut)
	}
	return out
}

// refused runs a command that must fail with the texts.
func (s *site) refused(args []string, want ...string) string {
	s.t.Helper()
	code, out, errOut := run(s.t, "", args...)
	for _, w := range want {
		if !strings.Contains(errOut, w) {
			s.t.Errorf("mink %v: %q, want %q", args, errOut, w)
		}
	}
	if code == 0 || out != "" {
		s.t.Errorf("mink %v: exit code %d, output %q", args, code, out)
	}
	return errOut
}

func (s *site) write(from, to int) {
	s.t.Helper()
	for i := from; i < to; i++ {
		s.mink(fmt.Sprintf(`{"id":%d,"item":"i%d"}`, i, i), "write", "shop.log")
		s.mink(fmt.Sprintf(`{"id":%d,"item":"i%d"}`, i, i), "write", "shop.rows")
	}
}

// rows are the ids of the log table, each with its offset.
func (s *site) rows() string {
	s.t.Helper()
	var out []string
	for line := range strings.Lines(s.mink("", "read", "shop.log", "--meta")) {
		var r struct {
			ID     int `json:"id"`
			Offset int `json:"__offset"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			s.t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%d@%d", r.ID, r.Offset))
	}
	return strings.Join(out, " ")
}

// keys are the ids of the primary-key table.
func (s *site) keys() string {
	s.t.Helper()
	return strings.ReplaceAll(strings.TrimSpace(s.mink("", "read", "shop.rows", "--mode", "snapshot", "--columns", "id", "--format", "csv")), "\n", " ")
}

// upload stops the node and loses its write-ahead objects, as time does once what
// they hold is in stream objects.
func (s *site) upload() {
	s.t.Helper()
	s.stop()
	err := filepath.WalkDir(filepath.Join(s.dir, "objects", "wal"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() <= 64 { // a tombstone stays
			return err
		}
		return os.Remove(path)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// What comes back after the metadata went back: everything that they know, and what
// the write-ahead logs still hold. What was uploaded since is lost, its offsets are
// skipped, and fsck lists the objects, which no sweep takes.
func TestMetadataThatWentBack(t *testing.T) {
	for _, c := range []struct {
		name    string
		copied  bool // the database was, and is put back; else an export is restored
		deleted bool // the write-ahead objects of later uploads are gone
	}{{"export, logs whole", false, false}, {"export, logs deleted", false, true}, {"database, logs whole", true, false}, {"database, logs deleted", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			database, file := filepath.Join(s.dir, "meta.db"), filepath.Join(s.dir, "meta.mink")
			s.start()
			s.mink("", "db", "create", "shop")
			s.mink("", "table", "create", "shop.log", "-C", "id INT", "-C", "item STRING")
			s.mink("", "table", "create", "shop.rows", "-C", "id INT NOT NULL", "-C", "item STRING", "--primary-key", "id")
			s.write(0, 3)
			if c.copied {
				s.stop()
				b, err := os.ReadFile(database)
				if err != nil || os.WriteFile(file, b, 0o600) != nil {
					t.Fatal(err)
				}
				s.start()
			} else {
				s.mink("", "meta", "export", "--data-dir", s.dir, "-o", file) // while the node runs
			}
			s.write(3, 6)
			s.mink("", "table", "create", "shop.later", "-C", "id INT")
			s.mink(`{"id":1}`, "write", "shop.later")
			if c.deleted {
				s.upload()
			} else {
				s.stop()
			}

			if c.copied {
				b, err := os.ReadFile(file)
				if err != nil || os.WriteFile(database, b, 0o600) != nil {
					t.Fatal(err)
				}
				err = s.try(nil)
				token := regexp.MustCompile(`mink serve --accept-metadata=([0-9a-f]{16});`).FindStringSubmatch(fmt.Sprint(err))
				if token == nil {
					t.Fatalf("no command to go on with in: %v", err)
				}
				deadline := time.Now().Add(time.Minute)
				for err = s.try(func(c *server.Config) { c.AcceptMetadata = token[1] }); err != nil && time.Now().Before(deadline); {
					err = s.try(func(c *server.Config) { c.AcceptMetadata = token[1] }) // the copy's lease is over soon
				}
				if err != nil {
					t.Fatal(err)
				}
			} else {
				if err := os.Remove(database); err != nil {
					t.Fatal(err)
				}
				s.mink("", "meta", "restore", "--data-dir", s.dir, file)
				s.start()
			}
			wantRows, wantKeys, next := "0@0 1@1 2@2 3@3 4@4 5@5", "id 0 1 2 3 4 5", 6
			if c.deleted {
				wantRows, wantKeys = "0@0 1@1 2@2", "id 0 1 2"
				if !c.copied { // at the export these were in the log only, too
					wantRows, wantKeys = "", "id"
				}
			}
			if c.copied && !c.deleted {
				// The epoch that wrote the later ones is not in the copy.
				wantRows, wantKeys = "0@0 1@1 2@2", "id 0 1 2"
			}
			if got := s.rows(); got != wantRows {
				t.Errorf("rows %s, want %s", got, wantRows)
			}
			if got := s.keys(); got != wantKeys {
				t.Errorf("keys %s, want %s", got, wantKeys)
			}
			s.write(9, 10)
			if got, want := s.rows(), strings.TrimSpace(fmt.Sprintf("%s 9@%d", wantRows, next)); got != want {
				t.Errorf("after one more: %s, want %s: offsets that were given out are skipped", got, want)
			}
			if got := s.keys(); got != wantKeys+" 9" {
				t.Errorf("keys after one more: %s", got)
			}
			s.refused([]string{"-b", s.at, "read", "shop.later"}, "shop.later")
			s.swept()
			var r api.CheckReport
			if err := json.Unmarshal([]byte(s.mink("", "fsck", "--deep", "--json")), &r); err != nil {
				t.Fatal(err)
			}
			var holds, others int
			for _, u := range r.Unnamed {
				holds, others = holds+len(u.Holds), others+u.Others
			}
			if !r.Clean || r.UnnamedObjects == 0 || holds == 0 || others == 0 {
				t.Errorf("fsck says %+v: want it clean, and the uploads of before with their ranges", r)
			}
			if out := s.mink("", "fsck"); !strings.Contains(out, "not in the metadata: data/1/") || !strings.Contains(out, "shop.log bucket 0") {
				t.Errorf("fsck prints %s", out)
			}
			// It goes on as any other.
			s.stop()
			s.start()
			if got, want := s.rows(), strings.TrimSpace(fmt.Sprintf("%s 9@%d", wantRows, next)); got != want {
				t.Errorf("after a restart: %s, want %s", got, want)
			}
		})
	}
}

// swept waits until the sweeps have run on all there is, long past its age.
func (s *site) swept() {
	s.t.Helper()
	runs := func() map[string]uint64 {
		var st api.Stats
		if err := json.Unmarshal([]byte(s.mink("", "cluster", "stats", "--node", "1", "--json")), &st); err != nil {
			s.t.Fatal(err)
		}
		out := map[string]uint64{}
		for _, l := range st.Loops {
			out[l.Name] = l.Runs
		}
		return out
	}
	first := runs()
	deadline := time.Now().Add(time.Minute)
	for now := first; now["orphan sweep"] < first["orphan sweep"]+3 || now["KV orphan sweep"] < first["KV orphan sweep"]+3; now = runs() {
		if time.Now().After(deadline) {
			s.t.Fatalf("the sweeps do not run: %v", now)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestMetaCommandsRefuse(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "meta.mink")
	none := filepath.Join(t.TempDir(), "none")
	s.refused([]string{"meta", "export", "--data-dir", none}, "no such file")
	if _, err := os.Stat(none); err == nil {
		t.Error("an export made a data directory")
	}
	s.start()
	s.mink("", "db", "create", "shop")
	if out := s.mink("", "meta", "export", "--data-dir", s.dir); !strings.HasPrefix(out, "MINKMETA") {
		t.Errorf("to standard output: %.20q", out)
	}
	s.mink("", "meta", "export", "--data-dir", s.dir, "-o", file)
	var sum server.MetaSummary
	if err := json.Unmarshal([]byte(s.mink("", "meta", "inspect", file, "--json")), &sum); err != nil || sum.Databases != 1 || sum.Nodes != 1 {
		t.Errorf("inspected %+v, %v", sum, err)
	}
	restore := func(args ...string) []string {
		return append([]string{"meta", "restore", "--data-dir", s.dir, file}, args...)
	}
	s.refused(restore(), "another mink process uses it")
	s.stop()
	// The exact command to go on with.
	m := regexp.MustCompile(`stop all nodes and repeat with --replace ([0-9a-f]{16})`).FindStringSubmatch(s.refused(restore(), "holds the metadata of a cluster"))
	if m == nil || m[1] != sum.Incarnation {
		t.Fatalf("found %v, the incarnation is %s", m, sum.Incarnation)
	}
	s.refused(restore("--replace", "0123456789abcdef"), "--replace says 0123456789abcdef")
	s.start() // nothing has changed
	s.mink("", "db", "create", "later")
	s.stop()
	s.mink("", restore("--replace", m[1])...)
	s.refused(restore("--replace", m[1]), "a restore came between") // as the store knows
	s.start()
	if out := s.mink("", "db", "list"); strings.Contains(out, "later") || !strings.Contains(out, "shop") {
		t.Errorf("the restored databases are %s", out)
	}
	s.stop()
	database := filepath.Join(s.dir, "meta.db")
	if err := os.Remove(database); err != nil {
		t.Fatal(err)
	}
	// The store has had another incarnation since the export.
	m = regexp.MustCompile(`repeat with --store ([0-9a-f]{16})`).FindStringSubmatch(s.refused(restore(), "a restore came between"))
	if m == nil {
		t.Fatal("no way on")
	}
	s.refused(restore("--store", m[1], "--replace", m[1]), "it is empty, there is nothing to replace")
	s.mink("", restore("--store", m[1])...)
	other := []string{"meta", "restore", "--data-dir", t.TempDir(), file}
	s.refused(other, "it does not say which metadata it belongs to", "--store none")
	s.mink("", append(other, "--store", "none")...)
	damaged := filepath.Join(t.TempDir(), "damaged")
	b, err := os.ReadFile(file)
	if err == nil {
		b[len(b)/2] ^= 1
		err = os.WriteFile(damaged, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.refused([]string{"meta", "inspect", damaged}, damaged, "corrupt")
	s.refused([]string{"meta", "restore", "--data-dir", t.TempDir(), damaged}, "corrupt")
	if left, _ := filepath.Glob(filepath.Dir(file) + "/*.tmp"); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
