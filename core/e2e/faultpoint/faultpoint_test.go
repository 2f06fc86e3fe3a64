package faultpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// armed makes two processes' points on one file with an order.
func armed(t *testing.T, o Order) (file string, a, b *Faults) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "fault")
	if err := Arm(file, o); err != nil {
		t.Fatal(err)
	}
	return file, New(file), New(file)
}

func do(ctx context.Context, f *Faults, step, table string) error {
	_, err := call(ctx, f, step, table, func(ctx context.Context) (int, error) { return 1, ctx.Err() })
	return err
}

// An order is carried out once, by the process that passes its point often enough, and only
// at its point and table.
func TestOnce(t *testing.T) {
	file, a, b := armed(t, Order{ID: "1", Point: "after swap", Table: "db.t", Pass: 2, Action: Lose})
	for i, c := range []struct {
		f     *Faults
		step  string
		table string
		lost  bool
	}{{a, "swap", "db.t", false}, {a, "swap", "db.u", false}, {b, "swap", "db.t", false}, {a, "begin", "db.t", false}, {b, "swap", "db.t", true}, {a, "swap", "db.t", false}, {b, "swap", "db.t", false}} {
		if err := do(t.Context(), c.f, c.step, c.table); errors.Is(err, errLost) != c.lost {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if d, ok := Carried(file); !ok || d.ID != "1" || d.PID != os.Getpid() || d.Table != "db.t" {
		t.Errorf("%+v, %v", d, ok)
	}
	if Disarm(file) {
		t.Error("an order that was carried out is there still")
	}
	if err := Arm(file, Order{Point: "before lunch"}); err == nil {
		t.Error("a point that is none can be armed")
	}
}

// A call that is held goes on when it is released, whatever its context says by then.
func TestHold(t *testing.T) {
	file, a, b := armed(t, Order{ID: "2", Point: "before put decision", Pass: 1, Action: Hold})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- do(ctx, a, "put decision", "db.t") }()
		time.Sleep(time.Minute)
		cancel()
		if err := do(ctx, b, "put decision", "db.t"); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that is not held: %v", err)
		}
		select {
		case err := <-done:
			t.Fatalf("it was not held: %v", err)
		default:
		}
		if err := Release(file); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("it was released and its context had ended: %v", err)
		}
	})
}

func TestStepOf(t *testing.T) {
	for key, want := range map[string][2]string{
		"lake/db/t-7/_staged/r-1.decision":             {"decision", "db.t"},
		"lake/db/my-table-7/_staged/3-ab.open":         {"open", "db.my-table"},
		"lake/db/t-7/data/r-1/0-0-0.parquet":           {"data", "db.t"},
		"lake/db/t-7/metadata/00003-abc.metadata.json": {"metadata", "db.t"},
		"lake/db/t-7/metadata/snap-1-0-abc.avro":       {"manifest", "db.t"},
		"log/7/1":                                      {"", ""},
	} {
		if step, table := stepOf(key); [2]string{step, table} != want {
			t.Errorf("%s: %s of %s", key, step, table)
		}
	}
}
