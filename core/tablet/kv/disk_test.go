package kv

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/mink-project/mink/sdk/mink"
)

// A disk that takes no more files ends the tablet, whatever waits for the disk then: a
// put, a checkpoint, the end of the store. The log has all that was put.
func TestDiskFails(t *testing.T) {
	long := string(bytes.Repeat([]byte("x"), 64<<10))
	for _, what := range []string{"put", "checkpoint", "close"} {
		t.Run(what, func(t *testing.T) {
			b := newBed(t, table(t, 1, nil, column("k", "INT"), column("v", "STRING")), true)
			wait(t, b.put(false, nil, Row{int32(1), "a"}))
			if err := os.RemoveAll(b.kv.store.dir); err != nil {
				t.Fatal(err)
			}
			switch what {
			case "put": // until it does not fit in memory
				var err error
				for k := int32(0); err == nil && k < 200; k++ {
					var p *Pending
					if p, err = b.tryPut(false, nil, Row{k % 8, long}); err == nil {
						<-p.Done()
						_, err = p.Result()
					}
				}
				if err == nil || b.kv.Err() == nil {
					t.Fatal(err, b.kv.Err())
				}
			case "checkpoint":
				if _, err := b.kv.Checkpoint(context.Background(), t.TempDir()+"/c"); err == nil {
					t.Fatal("a checkpoint of a store without its files")
				}
			}
			if err := b.kv.Close(); err == nil && what == "close" {
				t.Fatal("what was in memory is lost, and nothing is said")
			}
			b.kv = nil
			if err := os.RemoveAll(b.dir); err != nil {
				t.Fatal(err)
			}
			b.log.Close()
			b.open()
			if rows := b.all(); len(rows) == 0 {
				t.Fatal("the log lost rows")
			}
			if _, err := b.kv.Checkpoint(context.Background(), t.TempDir()+"/c"); errors.Is(err, mink.ErrCorrupt) || err != nil {
				t.Fatal(err)
			}
		})
	}
}

// fullFS has no room for more of a manifest than the first writes.
type fullFS struct {
	vfs.FS
	room *atomic.Int64 // writes
}

type fullFile struct {
	vfs.File
	room *atomic.Int64
}

func (f fullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	if err == nil && strings.HasPrefix(filepath.Base(name), "MANIFEST-") {
		file = fullFile{file, f.room}
	}
	return file, err
}

func (f fullFile) Write(p []byte) (int, error) {
	if f.room.Add(-1) < 0 {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

// A disk that is full when a manifest is written ends an open and a put, with an error
// that says so, at whichever write; with room the store opens again.
func TestNoRoomForAManifest(t *testing.T) {
	refused := 0
	for room := range int64(12) {
		b := newBed(t, table(t, 1, nil, column("k", "INT"), column("v", "STRING")), true)
		wait(t, b.put(false, nil, Row{int32(1), "a"}))
		dir := b.kv.store.dir
		if err := b.kv.Close(); err != nil {
			t.Fatal(err)
		}
		b.kv = nil
		left := &atomic.Int64{}
		left.Store(room)
		b.sh.fs = fullFS{vfs.Default, left}
		st, _, err := b.sh.openStore(dir, bucket7, nil)
		if err == nil {
			err = errors.Join(st.commit(st.newBatch(0), meta{}), st.db.Flush(), st.failed.get())
			_ = st.close()
		}
		if err != nil {
			refused++
			if !diskTrouble(err) {
				t.Errorf("no room after %d writes: %v, want an error of the disk", room, err)
			}
		}
		b.sh.fs = vfs.Default
		b.log.Close()
		b.open()
		if rows := b.all(); len(rows) == 0 {
			t.Errorf("no room after %d writes: rows are lost", room)
		}
	}
	if refused == 0 {
		t.Error("there was always room")
	}
}
