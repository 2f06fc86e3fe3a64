package node_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/mink"
)

// keyOp is one operation on one key: a put of a value, "" deletes, or a lookup.
type keyOp struct {
	key   int32
	put   bool
	value string
}

// oneKey is a register; an operation of which nobody knows whether it happened returns
// at the end of time.
var oneKey = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[int32][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(keyOp).key
			keys[k] = append(keys[k], o)
		}
		var parts [][]porcupine.Operation
		for _, p := range keys {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		if in := input.(keyOp); in.put {
			return true, in.value
		}
		return output.(string) == state.(string), state
	},
}

// kvClients put and look up while processes come and go.
type kvClients struct {
	t       *testing.T
	ref     mink.BucketRef
	current atomic.Pointer[sim.Process]
	pick    func(*rand.Rand) *sim.Process // whom to ask; nil: current
	clock   atomic.Int64

	mu      sync.Mutex
	history []porcupine.Operation
	unknown int
}

func (c *kvClients) done(client int, call int64, in keyOp, out string, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := c.clock.Add(1)
	if !known {
		c.unknown++
		end = 1 << 62
	}
	c.history = append(c.history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
}

func (c *kvClients) run(client int, r *rand.Rand, ops int) {
	for i := range ops {
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		in := keyOp{key: r.Int32N(3), put: r.IntN(2) == 0, value: fmt.Sprint(client, ".", i)}
		if r.IntN(5) == 0 {
			in.value = ""
		}
		c.one(client, r, in)
	}
}

func (c *kvClients) one(client int, r *rand.Rand, in keyOp) {
	p := c.current.Load()
	if c.pick != nil {
		p = c.pick(r)
	}
	served := func() bool { return c.pick != nil || c.current.Load() == p } // else nobody was answered
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := p.Node().KV(ctx, c.ref)
	if err != nil {
		return
	}
	call := c.clock.Add(1)
	if !in.put {
		value, _, err := lookKey(ctx, s, in.key)
		if err == nil && served() {
			c.done(client, call, in, value, true)
		}
		return
	}
	pending, err := s.Put(ctx, rowPut(c.t, s, in.key, in.value))
	if err != nil {
		return // nothing of it was applied
	}
	select {
	case <-pending.Done():
		_, err := pending.Result()
		c.done(client, call, in, "", err == nil && served())
	case <-p.Dead():
		c.done(client, call, in, "", false)
	}
}

func rowPut(t *testing.T, s *kv.Tablet, k int32, v string) kv.Put {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Schema().Arrow())
	defer b.Release()
	b.Field(0).(*array.Int32Builder).Append(k)
	b.Field(1).(*array.StringBuilder).Append(v)
	b.Field(2).AppendNull()
	rec := b.NewRecordBatch()
	defer rec.Release()
	meta, body, err := arrowipc.Encode(rec)
	if err != nil {
		t.Error(err)
	}
	put := kv.Put{SchemaID: 1, Metadata: meta, Body: body, Count: 1, WriterID: mink.NoWriter}
	if v == "" {
		put.Changes = []byte{byte(mink.ChangeDelete)}
	}
	return put
}

func lookKey(ctx context.Context, s *kv.Tablet, k int32) (string, int64, error) {
	key, err := keyenc.Encode([]schema.Type{schema.MustParseType("INT NOT NULL")}, []any{k})
	if err != nil {
		return "", 0, err
	}
	rows, _, err := s.Lookup(ctx, [][]byte{key}, nil)
	if err != nil {
		return "", 0, err
	}
	defer rows.Release()
	if rows.NumRows() == 0 {
		return "", 0, nil
	}
	return rows.Column(1).(*array.String).Value(0), rows.Column(2).(*array.Int64).Value(0), nil
}

// What clients see of a key is a register's: each answered put is seen by every lookup
// that begins after it, whatever the store does and however often the node dies.
func TestKeysAreLinearizable(t *testing.T) {
	answered, unknown := 0, 0
	for seed := range uint64(8) {
		cfg := sim.Quiet(seed)
		cfg.Chaos = 0.01
		cfg.Node = func(c *node.Config) { c.KVIdleClose = 2 * time.Second }
		sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
			p := w.StartReady(1)
			_, ref := pkTable(t, p)
			mustKV(t, p, ref)
			c := &kvClients{t: t, ref: ref}
			c.current.Store(p)
			var wg sync.WaitGroup
			for i := range 5 {
				wg.Go(func() { c.run(i, rand.New(rand.NewPCG(seed, uint64(i))), 60) })
			}
			r := rand.New(rand.NewPCG(seed, 99))
			for range 3 {
				time.Sleep(time.Duration(500+r.IntN(3000)) * time.Millisecond)
				p.Crash()
				next := w.StartReady(1)
				c.current.Store(next)
				p = next
			}
			wg.Wait()
			res, info := porcupine.CheckOperationsVerbose(oneKey, c.history, time.Minute)
			if res != porcupine.Ok {
				_ = info
				t.Errorf("seed %d: the history of %d operations is not linearizable: %s", seed, len(c.history), res)
			}
			answered, unknown = answered+len(c.history)-c.unknown, unknown+c.unknown
		})
	}
	t.Logf("%d operations were answered, of %d puts nobody knows", answered, unknown)
	if answered < 500 || unknown == 0 {
		t.Error("the histories hardly do anything")
	}
}
