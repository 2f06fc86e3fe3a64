package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// crashPoint kills every process at one call that one of them makes to the object store
// or to change the metadata log: before the call has its effect, or after. It also loses
// answers of the metadata log. The store's faults are fault.Store's.
type crashPoint struct {
	kill func()

	mu    sync.Mutex
	calls int64 // that counted
	at    int64 // of calls; 0: none
	after bool
	kinds callKind // which count; 0: all
	lose  int      // of the answers to come
	op    string   // where it struck last
}

type callKind uint8

const (
	storeCalls callKind = 1 << iota
	proposals
)

var errCrashed = errors.New("the process is gone")

// arm makes the n-th call from now on, of the kinds, the last one.
func (c *crashPoint) arm(n int64, after bool, kinds callKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.at, c.after, c.kinds = 0, n, after, kinds
}

// disarm lets them live, and answers how many calls counted since arm.
func (c *crashPoint) disarm() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.lose = 0, 0
	return c.calls
}

// loseAnswers makes the next n changes of the log happen without an answer.
func (c *crashPoint) loseAnswers(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = n
}

// lastOp is the call at which it struck last.
func (c *crashPoint) lastOp() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.op
}

func (c *crashPoint) around(kind callKind, op string, call func() error) error {
	c.mu.Lock()
	if c.kinds == 0 || c.kinds&kind != 0 {
		c.calls++
	}
	hit, after := c.at > 0 && c.calls >= c.at, c.after
	lost := kind == proposals && c.lose > 0
	if hit {
		c.at, c.op = 0, op
	} else if lost {
		c.lose--
	}
	c.mu.Unlock()
	switch {
	case hit:
		if after {
			_ = call() // nobody hears of it
		}
		c.kill()
		return fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, errCrashed)
	case lost:
		if err := call(); err != nil {
			return err
		}
		return fmt.Errorf("%w: the answer got lost", mink.ErrUnknownOutcome)
	}
	return call()
}

func (c *crashPoint) store(s objstore.Store) objstore.Store { return &crashStore{s, c} }
func (c *crashPoint) log(l metalog.Log) metalog.Log         { return &crashLog{l, c} }

type crashStore struct {
	objstore.Store
	point *crashPoint
}

func (s *crashStore) Put(ctx context.Context, req objstore.PutRequest) (r objstore.PutResponse, err error) {
	err = s.point.around(storeCalls, "put "+req.Key, func() error { r, err = s.Store.Put(ctx, req); return err })
	return r, err
}

func (s *crashStore) GetRange(ctx context.Context, req objstore.GetRangeRequest) (r objstore.GetRangeResponse, err error) {
	err = s.point.around(storeCalls, "get "+req.Key, func() error { r, err = s.Store.GetRange(ctx, req); return err })
	return r, err
}

func (s *crashStore) Head(ctx context.Context, key string) (r objstore.ObjectInfo, err error) {
	err = s.point.around(storeCalls, "head "+key, func() error { r, err = s.Store.Head(ctx, key); return err })
	return r, err
}

func (s *crashStore) List(ctx context.Context, req objstore.ListRequest) (r objstore.ListResponse, err error) {
	err = s.point.around(storeCalls, "list "+req.Prefix, func() error { r, err = s.Store.List(ctx, req); return err })
	return r, err
}

func (s *crashStore) DeleteBatch(ctx context.Context, keys []string) (r objstore.DeleteResponse, err error) {
	err = s.point.around(storeCalls, fmt.Sprint("delete ", keys), func() error { r, err = s.Store.DeleteBatch(ctx, keys); return err })
	return r, err
}

type crashLog struct {
	metalog.Log
	point *crashPoint
}

func (l *crashLog) Append(ctx context.Context, a metalog.Append) (e []metalog.Entry, err error) {
	err = l.point.around(proposals, "append to the metadata log", func() error { e, err = l.Log.Append(ctx, a); return err })
	return e, err
}

func (l *crashLog) WriteSnapshot(ctx context.Context, s metalog.SnapshotWrite) error {
	return l.point.around(proposals, "write a metadata snapshot", func() error { return l.Log.WriteSnapshot(ctx, s) })
}

func (l *crashLog) Truncate(ctx context.Context, through uint64, lease metalog.Lease) error {
	return l.point.around(proposals, "truncate the metadata log", func() error { return l.Log.Truncate(ctx, through, lease) })
}

func (l *crashLog) TakeLease(ctx context.Context, t metalog.TakeLease) (lease metalog.Lease, e metalog.Entry, err error) {
	err = l.point.around(proposals, "take the lease", func() error { lease, e, err = l.Log.TakeLease(ctx, t); return err })
	return lease, e, err
}

func (l *crashLog) RenewLease(ctx context.Context, lease metalog.Lease, ttl time.Duration) (r metalog.Lease, err error) {
	err = l.point.around(proposals, "renew the lease", func() error { r, err = l.Log.RenewLease(ctx, lease, ttl); return err })
	return r, err
}
