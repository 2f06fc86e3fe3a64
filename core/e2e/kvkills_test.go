package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/host/hosttest"
	"github.com/mink-project/mink/sdk/mink"
)

// killPoint is where in the life of a put, or of a snapshot, the node is killed.
type killPoint struct {
	name string
	hold hosttest.Hold
	put  bool // the put's, else the snapshot's
	// kept: the put that nobody was told of is there afterwards; again: its writer goes
	// on and sends it once more.
	kept, again bool
	// uploaded is how many files of the snapshot are on the store at the kill, at least;
	// none: exactly none.
	uploaded int
}

var killPoints = []killPoint{
	{name: "before the append lands", hold: hosttest.Hold{Prefix: "wal/"}, put: true},
	{name: "between append and flush", hold: hosttest.Hold{Prefix: "wal/", After: true}, put: true, kept: true},
	{name: "between append and flush, sent again", hold: hosttest.Hold{Prefix: "wal/", After: true}, put: true, kept: true, again: true},
	{name: "between checkpoint and upload", hold: hosttest.Hold{Prefix: "kv/"}},
	{name: "before the last upload", hold: hosttest.Hold{Prefix: "kv/", Begins: "MKVS"}, uploaded: 1},
	{name: "between upload and commit", hold: hosttest.Hold{Prefix: "kv/", Begins: "MKVS", After: true}, uploaded: 2},
}

// kvRow is a row of the table that these tests write.
type kvRow struct {
	ID    int64   `mink:"id"`
	Value *string `mink:"value"` // null in a delete of the wal image
}

func (r kvRow) value() string {
	if r.Value == nil {
		return ""
	}
	return *r.Value
}

// The node is killed with a put, or a snapshot of its store, at each point of its life.
// Afterwards lookups, rows, count and folded changelog are what was written, with nothing
// twice, from then on and after one more kill; fsck is clean, and the object store has
// the files of the one retained snapshot and no others.
func TestKilledAtEachPointOfPutAndSnapshot(t *testing.T) {
	if onS3() {
		t.Skip("looks into the store's directory")
	}
	for _, image := range []string{"full", "wal"} {
		for _, point := range killPoints {
			t.Run(point.name+", "+image, func(t *testing.T) {
				t.Parallel()
				newKVKill(t, image).run(point)
			})
		}
	}
}

// kvKill is a node, its table and what the table should have.
type kvKill struct {
	*node
	image   string
	objects string // directory
	client  *client.Client
	model   map[int64]string
}

func newKVKill(t *testing.T, image string) *kvKill {
	plugins, objects := t.TempDir(), filepath.Join(t.TempDir(), "objects")
	hosttest.Install(t, plugins, "hold")
	n := newNode(t, "--plugin-dir", plugins, "--storage-uri", "hold://"+objects, "--wal-upload-interval", "300ms",
		"--kv-snapshot-interval", "1s", "--kv-snapshots-retained", "1",
		"--orphan-age", "1s", "--object-grace", "1s", "--object-cleanup-interval", "200ms")
	n.start()
	n.createTable("e2e.kills", columns("id BIGINT", "value STRING"), "--primary-key", "id", "--option", "changelog_image="+image)
	return &kvKill{node: n, image: image, objects: objects, client: n.client(), model: map[int64]string{}}
}

func (k *kvKill) run(point killPoint) {
	t := k.t
	k.write(0, 300, "first")
	k.snapshotted()
	before := k.files()
	hosttest.SetHold(t, k.objects, point.hold)
	var open openPut
	if point.put {
		open = k.put()
	} else {
		k.write(200, 400, "second")
	}
	eventually(t, "the node reaches the point", func() bool { return hosttest.Held(t, k.objects) != "" })
	k.same("at the point") // no lookup shows what is not durable, none waits for a snapshot
	k.kill()
	if point.put && !point.again {
		_ = open.client.Close()
	}
	var left []string
	for f := range k.files() {
		if !before[f] {
			left = append(left, f)
		}
	}
	if !point.put && (len(left) < point.uploaded || point.uploaded == 0 && len(left) > 0) {
		t.Errorf("%d files are uploaded at the kill: %v", len(left), left)
	}
	hosttest.EndHold(t, k.objects)
	if point.kept {
		k.model[1000], k.model[5] = "open", "open"
	}
	k.start()
	if point.again {
		if err := open.answer.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	k.same("after the kill")
	k.write(350, 450, "third")
	k.same("after more writes")
	k.snapshotted()
	k.kill()
	k.start()
	k.same("from the next leader's snapshot")
	k.write(0, 10, "fourth")
	newest := k.snapshotted()
	eventually(t, "the store has the files of the one retained snapshot", func() bool {
		now := k.files()
		return len(now) == newest.Files && !slices.ContainsFunc(left, func(f string) bool { return now[f] })
	})
	k.deepCheck()
	k.stop()
}

// write upserts the keys of a range and deletes every seventh again, and waits.
func (k *kvKill) write(from, to int64, value string) {
	k.t.Helper()
	w, err := client.NewTypedUpsertWriter[kvRow](k.t.Context(), k.client, "e2e.kills", client.DefaultUpsert())
	if err != nil {
		k.t.Fatal(err)
	}
	for id := from; id < to; id++ {
		v := fmt.Sprint(value, " of ", id)
		if _, err := w.UpsertRows(k.t.Context(), kvRow{id, &v}); err != nil {
			k.t.Fatal(err)
		}
		k.model[id] = v
		if id%7 == 3 {
			if _, err := w.DeleteRows(k.t.Context(), kvRow{ID: id}); err != nil {
				k.t.Fatal(err)
			}
			delete(k.model, id)
		}
	}
	if err := w.Close(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
}

// openPut is a put whose answer is not waited for.
type openPut struct {
	client *client.Client
	answer *client.Append
}

func (k *kvKill) put() openPut {
	k.t.Helper()
	c := k.node.client()
	w, err := client.NewTypedUpsertWriter[kvRow](k.t.Context(), c, "e2e.kills", client.DefaultUpsert())
	if err != nil {
		k.t.Fatal(err)
	}
	v := "open"
	upsert, err := w.UpsertRows(k.t.Context(), kvRow{1000, &v}, kvRow{5, &v}) // one batch, one frame of the log
	if err != nil {
		k.t.Fatal(err)
	}
	return openPut{c, upsert}
}

// snapshotted waits until everything is in a snapshot, which it answers.
func (k *kvKill) snapshotted() (s api.KVSnapshotStats) {
	k.t.Helper()
	eventually(k.t, "a snapshot of all rows", func() bool {
		var stats api.Stats
		if err := json.Unmarshal(k.mink(nil, "--json", "cluster", "stats", "--node", "1"), &stats); err != nil {
			k.t.Fatal(err)
		}
		for _, b := range stats.Buckets {
			if b.Table == "e2e.kills" && b.KVSnapshot != nil {
				s = *b.KVSnapshot
				return s.ID > 0 && s.Offset == b.HighWatermark && s.Rows < 0 == (k.image == "wal")
			}
		}
		return false
	})
	return s
}

// files are those of KV snapshots on the object store.
func (k *kvKill) files() map[string]bool {
	k.t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(k.objects, "kv"), func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err): // deleted meanwhile
			return nil
		case err == nil && d.Type().IsRegular():
			out[path] = true
		}
		return err
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return out
}

// same compares every way to read with the model.
func (k *kvKill) same(when string) {
	t := k.t
	t.Helper()
	want := rowTexts(k.model)
	scanned := map[int64]string{}
	for b, err := range k.client.ScanSnapshot(t.Context(), client.SnapshotRequest{Table: "e2e.kills", Bucket: -1}) {
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		rows, err := client.Decode[kvRow](b.Record)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if _, again := scanned[r.ID]; again {
				t.Fatalf("%s: key %d is scanned twice", when, r.ID)
			}
			scanned[r.ID] = r.value()
		}
	}
	sameRows(t, when+", the rows", rowTexts(scanned), want)
	if n, err := k.client.Count(t.Context(), "e2e.kills", nil); err != nil || n != int64(len(k.model)) {
		t.Fatalf("%s: count %d of %d: %v", when, n, len(k.model), err)
	}
	sameRows(t, when+", the changelog", rowTexts(k.fold(when)), want)

	l, err := client.NewTypedLookuper[int64, kvRow](t.Context(), k.client, "e2e.kills", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, id := range []int64{0, 1, 3, 5, 6, 199, 200, 201, 299, 300, 301, 351, 399, 449, 450, 1000} {
		row, ok, err := l.Find(t.Context(), id)
		value, there := k.model[id]
		if err != nil || ok != there || row.value() != value {
			t.Fatalf("%s: lookup of %d: %q, found %v, should be %q, %v: %v", when, id, row.value(), ok, value, there, err)
		}
	}
}

// fold is what the changes make. Of a full image each fits the row that is there; what
// is in the log twice does not.
func (k *kvKill) fold(when string) map[int64]string {
	t := k.t
	t.Helper()
	rows := map[int64]string{}
	for b, err := range k.client.Scan(t.Context(), client.ScanRequest{Table: "e2e.kills", Bucket: -1}) {
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		list, err := client.Decode[kvRow](b.Record)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range list {
			old, there := rows[r.ID]
			var fits bool
			full := k.image == "full"
			switch b.Change(i) {
			case mink.ChangeInsert:
				fits = full && !there
				rows[r.ID] = r.value()
			case mink.ChangeUpdateBefore:
				fits = full && there && old == r.value()
			case mink.ChangeUpdateAfter:
				fits = !full || there
				rows[r.ID] = r.value()
			case mink.ChangeDelete:
				fits = !full || old == r.value()
				delete(rows, r.ID)
			default:
				fits = false
			}
			if !fits {
				t.Fatalf("%s: offset %d is %s of %d with %q, the row there is %q (%v)", when, int64(b.Meta.Base)+int64(i), b.Change(i), r.ID, r.value(), old, there)
			}
		}
	}
	return rows
}

func rowTexts(rows map[int64]string) (out []string) {
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, fmt.Sprint(id, ": ", rows[id]))
	}
	return out
}
