package pluginhost

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

type operation string

const (
	opPut     operation = "put"
	opPutPart operation = "put_part"
	opGet     operation = "get"
	opHead    operation = "head"
	opList    operation = "list"
	opDelete  operation = "delete"
	opUpload  operation = "upload" // start, complete, abort

	opCatalogRead  operation = "catalog_read"
	opCatalogWrite operation = "catalog_write"
)

// The operations of sinks.
const (
	opOpen    operation = "open_table"
	opRecover operation = "recover"
	opBegin   operation = "begin_round"
	opWrite   operation = "write"
	opPrepare operation = "prepare"
	opCommit  operation = "commit"
	opAbort   operation = "abort"
	opSchema  operation = "schema_change"
	opDrop    operation = "drop"
)

// operationsOf are the operations of a kind of plugin.
var operationsOf = map[string][]operation{
	plugin.KindObjectStore: {opPut, opPutPart, opGet, opHead, opList, opDelete, opUpload},
	plugin.KindSink:        {opOpen, opRecover, opBegin, opWrite, opPrepare, opCommit, opAbort, opSchema, opDrop},
	plugin.KindCatalog:     {opCatalogRead, opCatalogWrite},
}

// Latencies are counted in buckets that double, from 64 us to 67 s.
const (
	latencyMin     = 64 * time.Microsecond
	latencyBuckets = 21
)

type opMeter struct {
	calls, failures, nanos, sent, received atomic.Int64
	latency                                [latencyBuckets + 1]atomic.Int64 // the last: above all bounds
}

// meter counts what goes through a plugin, over all its processes.
type meter struct {
	operations []operation
	ops        []opMeter // of operations
	inFlight   atomic.Int64
}

func newMeter(kind string) meter {
	list := operationsOf[kind]
	return meter{operations: list, ops: make([]opMeter, len(list))}
}

// begin counts a call; done ends it.
func (m *meter) begin(op operation) (done func(sent, received int64, err error)) {
	o := &m.ops[slices.Index(m.operations, op)]
	m.inFlight.Add(1)
	began := time.Now()
	return func(sent, received int64, err error) {
		took := time.Since(began)
		m.inFlight.Add(-1)
		o.calls.Add(1)
		o.nanos.Add(int64(took))
		o.sent.Add(sent)
		o.received.Add(received)
		o.latency[latencyBucket(took)].Add(1)
		if failed(err) {
			o.failures.Add(1)
		}
	}
}

// latencyBucket is the first whose bound is not below d.
func latencyBucket(d time.Duration) int {
	if d <= latencyMin {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/latencyMin)), latencyBuckets)
}

// failed leaves out answers that are results: taken, absent, lost, given up.
func failed(err error) bool {
	return err != nil && !errors.Is(err, objstore.ErrNotExist) && !errors.Is(err, objstore.ErrAlreadyExists) &&
		!errors.Is(err, objstore.ErrConflict) && !errors.Is(err, context.Canceled)
}

// Stats describes one plugin in use. Counters cover all its processes.
type Stats struct {
	Kind, Name, Version, Path string
	PID                       int // 0 while no process serves
	Restarts                  uint64
	RSS                       int64 // bytes
	CPU                       time.Duration
	InFlight                  int64
	SharedLost                int    // slots of shared memory that the process cannot use any more
	LastError                 string // why the last process ended, or the last start failed
	Operations                []OperationStats
}

// OperationStats counts one operation.
type OperationStats struct {
	Name            string
	Calls, Failures int64
	Sent, Received  int64 // bytes of objects, or of rows as Arrow in memory
	Time            time.Duration
	// Latency[i] calls took at most LatencyBound(i), and more than the bound before;
	// those above all bounds are only in Calls.
	Latency []int64
}

// LatencyBound is the upper bound of a latency bucket.
func LatencyBound(i int) time.Duration { return latencyMin << i }

// Quantile is the bound of the bucket in which the q-th of all calls lies, 0 when
// there were none. Calls above all bounds count as the last.
func (o OperationStats) Quantile(q float64) time.Duration {
	if o.Calls == 0 {
		return 0
	}
	rank := max(int64(q*float64(o.Calls)+0.5), 1)
	for i, n := range o.Latency {
		if rank -= n; rank <= 0 {
			return LatencyBound(i)
		}
	}
	return LatencyBound(len(o.Latency) - 1)
}

func statsOf(all []*supervisor) []Stats {
	out := make([]Stats, len(all))
	for i, s := range all {
		out[i] = s.stats()
	}
	slices.SortFunc(out, func(a, b Stats) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

func (s *supervisor) stats() Stats {
	s.mu.Lock()
	st := Stats{
		Kind: s.in.Manifest.Kind, Name: s.in.Manifest.Name, Version: s.mu.version, Path: s.in.Path,
		Restarts: s.mu.generation - 1, LastError: s.mu.lastError, InFlight: s.meter.inFlight.Load(),
	}
	p, usage, before := s.mu.process, s.mu.usage, s.mu.cpuBefore
	s.mu.Unlock()
	if p != nil {
		st.PID, st.SharedLost = p.PID(), p.SharedLost()
		if u, err := p.Usage(); err == nil {
			usage = u
		}
	}
	st.RSS, st.CPU = usage.RSS, before+usage.CPU
	for i := range s.meter.ops {
		m := &s.meter.ops[i]
		o := OperationStats{
			Name: string(s.meter.operations[i]), Calls: m.calls.Load(), Failures: m.failures.Load(),
			Sent: m.sent.Load(), Received: m.received.Load(), Time: time.Duration(m.nanos.Load()),
			Latency: make([]int64, latencyBuckets),
		}
		for j := range o.Latency {
			o.Latency[j] = m.latency[j].Load()
		}
		st.Operations = append(st.Operations, o)
	}
	return st
}
