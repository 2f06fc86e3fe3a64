package kvsnap

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

var testBucket = mink.BucketRef{Table: 1, Partition: 1, Index: 0}

// small makes parts and ranges of files that a test can afford.
func small() Config {
	cfg := Default()
	cfg.RequestBytes = ChunkBytes
	cfg.Requests = 3
	return cfg
}

func newStore(t testing.TB) *fault.Store {
	s := memstore.New(memstore.Config{PageMax: 2})
	f := fault.New(s, fault.Config{Seed: 1})
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func newUploader(t testing.TB, store objstore.Store, epoch mink.LeaderEpoch) *Uploader {
	u, err := NewUploader(small(), store, testBucket, epoch, 77)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// local is a store's directory as a test has it: name to content.
type local map[string][]byte

// write makes a fresh directory of the files, table files as links to those of the
// working directory, as checkpoints have them.
func (l local) write(t testing.TB, work string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range l {
		at := filepath.Join(dir, name)
		if !shared(name) {
			if err := os.WriteFile(at, data, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		kept := filepath.Join(work, name)
		if _, err := os.Stat(kept); err != nil {
			if err := os.WriteFile(kept, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(kept, at); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (l local) equal(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(l) {
		t.Fatalf("%d files were restored, %v were there", len(entries), slices.Sorted(maps.Keys(l)))
	}
	for name, want := range l {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %d bytes were restored, %d were there: %v", name, len(got), len(want), err)
		}
	}
}

func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	c := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = c.Read(b)
	return b
}

// fakeMeta is a metadata log of one process in memory.
type fakeMeta struct {
	mu struct {
		sync.Mutex
		state   *cluster.State
		changed chan struct{}
		epoch   int64
		lose    error // answered to the next proposal, which is applied all the same
	}
}

func (m *fakeMeta) View() *cluster.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.state
}

func (m *fakeMeta) Changed(index uint64) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.state.Index() > index {
		done := make(chan struct{})
		close(done)
		return done
	}
	return m.mu.changed
}

func (m *fakeMeta) Propose(_ context.Context, commands ...*clusterpb.Command) ([]*clusterpb.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := &clusterpb.Batch{Epoch: m.mu.epoch, Commands: commands}
	if commands[0].GetRegisterNode() != nil {
		b.Epoch = 0
	}
	next, results, err := m.mu.state.Apply(m.mu.state.Index()+1, int64(m.mu.state.Index())*1000, b)
	if err != nil {
		return nil, err
	}
	if b.Epoch == 0 {
		m.mu.epoch = results[0].GetId()
	}
	m.mu.state = next
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
	if lost := m.mu.lose; lost != nil {
		m.mu.lose = nil
		return nil, lost
	}
	return results, nil
}

// loseNext makes the answer to the next proposal get lost.
func (m *fakeMeta) loseNext(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.lose = err
}

func (m *fakeMeta) must(t testing.TB, c *clusterpb.Command) {
	t.Helper()
	results, err := m.Propose(t.Context(), c)
	if err == nil {
		err = cluster.ResultError(results[0])
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newMeta has one primary-key table of one bucket, stream 1, led here.
func newMeta(t testing.TB) *fakeMeta { return newMetaOf(t, 1) }

// newMetaOf has so many buckets, streams 1, 2, ...
func newMetaOf(t testing.TB, buckets int32) *fakeMeta {
	t.Helper()
	m := &fakeMeta{}
	m.mu.state, m.mu.changed = cluster.NewState(), make(chan struct{})
	m.register(t)
	m.must(t, &clusterpb.Command{Kind: &clusterpb.Command_CreateDatabase{CreateDatabase: &clusterpb.CreateDatabase{Name: "d"}}})
	d, err := (&schema.Descriptor{Database: "d", Table: "k", BucketCount: buckets, PrimaryKey: []string{"a"}, Schema: schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}}}}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	m.must(t, &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{CreateTable: &clusterpb.CreateTable{Descriptor_: d.Encode(), Uuid: content(1, 16)}}})
	return m
}

// register begins another node epoch, which seals the one before.
func (m *fakeMeta) register(t testing.TB) {
	m.must(t, &clusterpb.Command{Kind: &clusterpb.Command_RegisterNode{RegisterNode: &clusterpb.RegisterNode{Node: 1, Nonce: m.View().Index() + 9, FeatureLevel: 1, Version: "test"}}})
}

// append commits stream 1 up to the offset.
func (m *fakeMeta) append(t testing.TB, to mink.Offset) {
	t.Helper()
	m.appendTo(t, 1, to)
}

func (m *fakeMeta) appendTo(t testing.TB, stream mink.StreamID, to mink.Offset) {
	t.Helper()
	view := m.View()
	st, _ := view.Stream(stream)
	if st.End >= to {
		return
	}
	n, _ := view.Node(1)
	w, _ := view.WAL(n.Epoch)
	o := plan.Object{ID: plan.ObjectID{Epoch: n.Epoch, Kind: plan.KindStreamSet, Seq: w.CommitSeq + 1}, WAL: w.ID, Size: 100, IndexPos: 10, IndexLen: 10}
	m.must(t, cluster.CommitObjectsCommand(plan.CommitObjects{WAL: w.ID, Seq: w.CommitSeq + 1, Objects: []plan.Object{o}, Items: []plan.Item{
		{Stream: stream, LeaderEpoch: st.Owner.LeaderEpoch, Object: o.ID, Start: st.End, End: to, Checkpoint: true}}}))
}

// fail over: the next leader epoch, on another node epoch.
func (m *fakeMeta) failOver(t testing.TB) {
	t.Helper()
	old, _ := m.View().Node(1)
	m.register(t)
	n, _ := m.View().Node(1)
	lease := int64(m.View().Lease().Epoch) + 1
	m.must(t, &clusterpb.Command{Kind: &clusterpb.Command_LeaseTaken{LeaseTaken: &clusterpb.LeaseTaken{Node: 1, Epoch: int64(n.Epoch), Lease: lease}}})
	m.must(t, cluster.RecoverWALCommand(plan.RecoverWAL{WAL: old.WAL(), Lease: mink.LeaseEpoch(lease)}))
	st, _ := m.View().Stream(1)
	m.must(t, &clusterpb.Command{Kind: &clusterpb.Command_LeadBuckets{LeadBuckets: &clusterpb.LeadBuckets{Lease: lease, Leads: []*clusterpb.Lead{
		{Stream: 1, Node: 1, Epoch: int64(n.Epoch), ExpectedLeaderEpoch: int32(st.Owner.LeaderEpoch)}}}}})
}

// sound checks that every file of a retained snapshot is on the store.
func sound(t testing.TB, m *fakeMeta, store objstore.Store) {
	t.Helper()
	for _, s := range m.View().KVSnapshots(1) {
		for _, f := range s.Files {
			if err := CheckFile(t.Context(), small(), store, kvplan.BucketFile{Bucket: testBucket, File: f}, true); err != nil {
				t.Fatalf("snapshot %d: %v", s.ID, err)
			}
		}
	}
}

// keys are all files on the store.
func keys(t testing.TB, store objstore.Store) (out []string) {
	t.Helper()
	err := objstore.All(t.Context(), store, kvplan.Prefix, "", func(o objstore.ObjectInfo) bool {
		if _, ok := kvplan.ParseKey(o.Key); !ok {
			t.Errorf("%s is no key", o.Key)
		}
		out = append(out, o.Key)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%06d.sst", i))
	}
	return out
}
