package node_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/internal/codefault"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/objstore"
)

// The tests of the tests of tables: each breaks one thing and expects them to notice.

// A store and a log that do not do as they say lose rows, which the table's life shows.
func TestTablesNoticeFaultsOfTheWorld(t *testing.T) {
	for name, c := range map[string]struct {
		store func(objstore.Store) objstore.Store
		log   func(metalog.Log) metalog.Log
	}{
		"snapshots are committed without their files": {store: func(s objstore.Store) objstore.Store { return lazyStore{s, kvplan.Prefix} }},
		"log slots are not kept":                      {store: func(s objstore.Store) objstore.Store { return lazyStore{s, "wal/"} }},
		"snapshots stand at earlier offsets":          {log: func(l metalog.Log) metalog.Log { return earlierSnapshots{l} }},
	} {
		t.Run(name, func(t *testing.T) {
			for at := int64(40); at < 800; at += 20 {
				what := noticedAt(t, at, c.store, c.log)
				if what != "" {
					t.Logf("noticed with a crash at call %d: %s", at, what)
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
}

func noticedAt(t *testing.T, at int64, store func(objstore.Store) objstore.Store, log func(metalog.Log) metalog.Log) (what string) {
	point := &crashPoint{}
	cfg := kvWorld(1, point)
	if store != nil {
		cfg.Store = func(s objstore.Store) objstore.Store { return point.store(store(s)) }
	}
	if log != nil {
		cfg.Log = func(l metalog.Log) metalog.Log { return point.log(log(l)) }
	}
	return finding(func(fail fataler) {
		inKVRun(t, cfg, point, fail, lifeTables()["last write, wal image"], func(r *kvRun) {
			point.arm(at, false, 0)
			kvLife(r)
			kvSettled(r)
		})
	})
}

// lazyStore acknowledges what is put below a prefix and keeps nothing of it.
type lazyStore struct {
	objstore.Store
	prefix string
}

func (s lazyStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if strings.HasPrefix(req.Key, s.prefix) {
		return objstore.PutResponse{}, nil
	}
	return s.Store.Put(ctx, req)
}

// earlierSnapshots commits each KV snapshot as of one offset less than it has.
type earlierSnapshots struct{ metalog.Log }

func (l earlierSnapshots) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	for i, payload := range a.Payloads {
		var b clusterpb.Batch
		if err := proto.Unmarshal(payload, &b); err != nil {
			return nil, err
		}
		for _, c := range b.Commands {
			if k := c.GetCommitKvSnapshot(); k != nil {
				k.Offset--
			}
		}
		changed, err := proto.Marshal(&b)
		if err != nil {
			return nil, err
		}
		a.Payloads[i] = changed
	}
	return l.Log.Append(ctx, a)
}

// TestTablesNoticeFaultsOfCode: changes of the code that lose or invent rows.
func TestTablesNoticeFaultsOfCode(t *testing.T) {
	codefault.MustNotice(t, "../..", []codefault.Fault{
		{
			Name: "a store is brought up to date from one offset too far", File: "core/tablet/kv/open.go",
			Old: "\t\tr := replay{t: t, opening: opening, set: t.settings.Load(), m: m}\n",
			New: "\t\tm.flushed = min(m.flushed+1, log.LogEnd())\n\t\tr := replay{t: t, opening: opening, set: t.settings.Load(), m: m}\n",
		},
		{
			Name: "what is flushed is not written down", File: "core/tablet/kv/store.go",
			Old: "\terr := b.b.Set([]byte{metaKey}, s.buf, nil)\n",
			New: "\tvar err error\n\tif _, none := s.readMeta(s.db); none != nil {\n\t\terr = b.b.Set([]byte{metaKey}, s.buf, nil)\n\t}\n",
		},
		{
			Name: "the old row is the store's, not that of a put on its way", File: "core/tablet/kv/put.go",
			Old: "\told, ok := t.before.get(r.key)\n", New: "\told, ok := []byte(nil), false\n",
		},
		{
			Name: "an old row that was read early is taken although a put came between", File: "core/tablet/kv/put.go",
			Old: "\told, ok := t.before.get(r.key)\n\tif !ok {\n\t\told, ok = r.from.get(r.at)\n\t}\n",
			New: "\told, ok := r.from.get(r.at)\n\tif !ok {\n\t\told, ok = t.before.get(r.key)\n\t}\n",
		},
		{
			Name: "the rows of a refused put stay in the prewrite buffer", File: "core/tablet/kv/put.go",
			Old: "\t\tt.before.back()\n", New: "\t\tt.before.done()\n",
		},
		{
			Name: "puts are answered before they are durable", File: "core/tablet/kv/flush.go",
			Old: "\t\tdefault:\n\t\t\treturn run, size, nil\n\t\t}\n\t\tif _, err := f.ticket.Result(); err != nil {\n\t\t\treturn run, size, err\n\t\t}\n",
			New: "\t\tdefault:\n\t\t}\n",
		},
		{
			Name: "deletes are not counted", File: "core/tablet/kv/put.go",
			Old: "\t\tf.delta--\n", New: "\t\tf.delta -= 0\n",
		},
		{
			Name: "an alter does not reach open stores", File: "core/node/buckets.go",
			Old: "\t\terr = t.Reconfigure(kvTable(e.table))\n", New: "\t\terr = nil\n",
		},
		{
			Name: "leased numbers begin at 1 again", File: "core/node/kv.go",
			Old: "\treturn cluster.LeasedNumbers(r)\n", New: "\t_, _, err = cluster.LeasedNumbers(r)\n\treturn 1, count, err\n",
		},
		{
			Name: "a snapshot's files are those of before its last changes", File: "core/tablet/kv/store.go",
			Old: "\tif err := s.db.Flush(); err != nil {\n\t\treturn Checkpoint{}, storeError(err)\n\t}\n\tm, err := s.readMeta(s.db)\n",
			New: "\tm, err := s.readMeta(s.db)\n",
		},
	}, "^(TestRandomTables|TestTablesCrashAtEveryCall)$", "-rapid.checks=150", "-rapid.nofailfile", "-rapid.shrinktime=1s")
}
