package metalog_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/sdk/mink"
)

// someExport is an export of a log with a few entries, and the log.
func someExport(t testing.TB) ([]byte, metalog.ExportInfo, *metalog.Replica) {
	t.Helper()
	log := memlog.New()
	batch := func(c *clusterpb.Command) {
		t.Helper()
		payload, err := metalog.EncodeBatch(metalog.Default(), &clusterpb.Batch{Commands: []*clusterpb.Command{c}})
		if err == nil {
			_, err = log.Append(t.Context(), metalog.Append{Payloads: [][]byte{payload}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	batch(&clusterpb.Command{Kind: &clusterpb.Command_SetIncarnation{SetIncarnation: &clusterpb.SetIncarnation{Incarnation: 0xabc}}})
	batch(&clusterpb.Command{Kind: &clusterpb.Command_RegisterNode{RegisterNode: &clusterpb.RegisterNode{Node: 7, Nonce: 5, FeatureLevel: 1}}})
	r, err := metalog.Open(t.Context(), log, metalog.Default(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	info, err := metalog.Export(&b, r, "v9")
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), info, r
}

func TestExport(t *testing.T) {
	file, info, r := someExport(t)
	got, state, err := metalog.ReadExport(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	at, err := got.At()
	if got != info || err != nil || at != r.Applied() || got.Incarnation != "0000000000000abc" || got.WrittenBy != "v9" {
		t.Errorf("%+v (%v), want %+v at %s", got, err, info, r.Applied())
	}
	if n, ok := state.Node(7); !ok || n.Nonce != 5 || state.Index() != 2 {
		t.Errorf("read back %+v at %d", n, state.Index())
	}
	log := memlog.New()
	if err := metalog.Restore(t.Context(), log, got, state, metalog.Position{}); err != nil {
		t.Fatal(err)
	}
	again, err := metalog.Open(t.Context(), log, metalog.Default(), quiet())
	if err != nil || again.Applied() != r.Applied() {
		t.Fatalf("restored at %s (%v), want %s", again.Applied(), err, r.Applied())
	}
	if err := metalog.Restore(t.Context(), log, got, state, metalog.Position{}); !errors.Is(err, metalog.ErrHeadMoved) {
		t.Errorf("restored over a log: %v", err)
	}
	empty, err := metalog.Open(t.Context(), memlog.New(), metalog.Default(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metalog.Export(&bytes.Buffer{}, empty, "v9"); !errors.Is(err, mink.ErrNotExist) {
		t.Errorf("exported an empty log: %v", err)
	}
}

// Whatever happens to the file is noticed before anything is done with it.
func TestDamagedExports(t *testing.T) {
	file, _, _ := someExport(t)
	for n := range file {
		if _, _, err := metalog.ReadExport(bytes.NewReader(file[:n])); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
		b := bytes.Clone(file)
		b[n] ^= 0x10
		if _, _, err := metalog.ReadExport(bytes.NewReader(b)); !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnsupported) {
			t.Fatalf("byte %d changed: %v", n, err)
		}
	}
	if _, _, err := metalog.ReadExport(bytes.NewReader(append(bytes.Clone(file), 0))); !errors.Is(err, mink.ErrCorrupt) {
		t.Errorf("a byte behind its end: %v", err)
	}
	newer := bytes.Clone(file)
	newer[11] = 2
	if _, _, err := metalog.ReadExport(bytes.NewReader(newer)); !errors.Is(err, mink.ErrUnsupported) || !strings.Contains(err.Error(), "newer mink") {
		t.Errorf("of version 2: %v", err)
	}
}

func FuzzReadExport(f *testing.F) {
	file, _, _ := someExport(f)
	f.Add(file)
	f.Fuzz(func(t *testing.T, b []byte) {
		info, state, err := metalog.ReadExport(bytes.NewReader(b))
		if err == nil && (state.Index() != info.Index || state.Check() != nil) {
			t.Fatalf("%+v came with a state at %d", info, state.Index())
		}
	})
}
