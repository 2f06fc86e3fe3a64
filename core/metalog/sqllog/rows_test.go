package sqllog_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// Heartbeat rows of node ids that are used once do not gather; a missing row refuses
// heartbeats like a marked one, and a row that is not marked stays, however old.
func TestOldMarkedRowsGo(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "meta.db")
	l := openURL(t, "sqlite:"+path)
	defer l.Close()
	register := func(node mink.NodeID) mink.NodeEpoch {
		t.Helper()
		entries, err := l.Append(ctx, metalog.Append{Payloads: [][]byte{{1}}, Register: node})
		if err != nil {
			t.Fatal(err)
		}
		return mink.NodeEpoch(entries[0].Index)
	}
	old, silent, fresh := register(1), register(2), register(3)
	if _, err := l.Append(ctx, metalog.Append{Payloads: [][]byte{{1}}, Seal: []mink.NodeEpoch{old, fresh}}); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `UPDATE meta_node SET beat_ms = beat_ms - 8 * 86400000 WHERE node < 3`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	newest := register(4)
	rows, err := l.Heartbeats(ctx)
	if err != nil || len(rows) != 3 || rows[0].Epoch != silent || rows[1].Epoch != fresh || rows[2].Epoch != newest {
		t.Errorf("rows %+v, %v; want those of epochs %d, %d and %d", rows, err, silent, fresh, newest)
	}
	if _, err := l.Heartbeat(ctx, 1, old, 1); err == nil {
		t.Error("a heartbeat of the epoch whose row is gone was taken")
	}
}
