package kv

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

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
