package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"strings"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/sqllog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/storescan"
	"github.com/mink-project/mink/sdk/mink"
)

func metaConfig() metalog.Config {
	c := metalog.Default()
	c.FeatureLevel, c.WriterVersion = featureLevel, Version
	return c
}

func openLog(ctx context.Context, cfg Config, readOnly bool, logger *slog.Logger) (metalog.Log, error) {
	c := sqllog.Default()
	c.BinaryVersion, c.ReadOnly = Version, readOnly
	log, err := sqllog.Open(ctx, cfg.metaURL(), c, logger)
	if err != nil {
		return nil, fmt.Errorf("metadata database %s: %w", redactURL(cfg.metaURL()), err)
	}
	return log, nil
}

// headDeps are what the start of a node, or a restore, compares. found is told what
// the stores have of lost entries, when that is looked for; nil: nobody.
func (p *parts) headDeps(found func(storescan.Lost)) storehead.Deps {
	return storehead.Deps{
		Objects: p.objects, WALStore: p.wal, Log: p.log, Logger: p.logger,
		FindLost: func(ctx context.Context, state *cluster.State, incarnation uint64) (*clusterpb.SetIncarnation, error) {
			p.logger.Info("looking for what the object store has and the metadata lack", "index", state.Index())
			lost, err := storescan.FindLost(ctx, storescan.Stores{Objects: p.objects, WAL: p.wal, Logger: p.logger}, state)
			if err != nil {
				return nil, err
			}
			sinks, err := p.sinkStates(ctx, state)
			if err != nil {
				return nil, err
			}
			lost.RespectSinks(state, sinks)
			if found != nil {
				found(lost)
			} else {
				for _, s := range lost.Stopped {
					p.logger.Warn("a table is not tiered any further", "table", s.Table, "sink", s.Sink, "reason", s.Reason)
				}
				p.logger.Warn("the object store holds what the metadata lack; mink fsck lists it", "objects", lost.Objects, "bytes", lost.Bytes, "buckets", len(lost.Ends), "logs", len(lost.WALs))
			}
			return lost.Command(incarnation), nil
		},
	}
}

// ExportMeta writes the metadata that the database holds now. Nothing is changed;
// nodes may run on the database, or none.
func ExportMeta(ctx context.Context, cfg Config, w io.Writer, logger *slog.Logger) (_ metalog.ExportInfo, err error) {
	log, err := openLog(ctx, cfg, true, logger)
	if err != nil {
		return metalog.ExportInfo{}, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	replica, err := metalog.Open(ctx, log, metaConfig(), logger)
	if err != nil {
		return metalog.ExportInfo{}, fmt.Errorf("metadata database %s: %w", redactURL(cfg.metaURL()), err)
	}
	info, err := metalog.Export(w, replica, Version)
	if err != nil {
		return info, fmt.Errorf("metadata database %s: %w", redactURL(cfg.metaURL()), err)
	}
	return info, nil
}

// RestoreOptions say what a restore may overwrite.
type RestoreOptions struct {
	// Replace is the incarnation of the metadata that the database holds, as typed by
	// a person; "": the database must be empty.
	Replace string
	// Store is the incarnation that the object store belongs to, as typed, when it is
	// not that of the export; "none" for a store that does not say.
	Store string
}

// RestoreReport is what a restore did.
type RestoreReport struct {
	Index       uint64 `json:"index"`       // of the export
	Incarnation string `json:"incarnation"` // that began
	Nodes       int    `json:"nodes"`
	Tables      int    `json:"tables"`
	Buckets     int    `json:"buckets"`
	// What the object store has and the metadata lack.
	UnknownObjects int   `json:"unknown_objects"`
	UnknownBytes   int64 `json:"unknown_bytes"`
	CutLogs        int   `json:"cut_logs"` // write-ahead logs that lack records
	// Given are buckets in which offsets were given out that the metadata do not know.
	Given []GivenOffsets `json:"given,omitempty"`
	// Stopped are tables that are not tiered any further.
	Stopped []StoppedTable `json:"stopped,omitempty"`
}

// StoppedTable is a table whose sink has what the metadata cannot follow.
type StoppedTable struct {
	Table  string `json:"table"`
	Sink   string `json:"sink"`
	Reason string `json:"reason"` // with the command to go on with
}

// GivenOffsets says that offsets [Known, End) of a bucket were given out after the
// export. What the bucket's write-ahead log still holds of them comes back when the
// first node recovers it; the rest is skipped.
type GivenOffsets struct {
	Table  string         `json:"table"`
	Bucket mink.BucketRef `json:"bucket"`
	Known  mink.Offset    `json:"known"`
	End    mink.Offset    `json:"end"`
}

// RestoreMeta makes the metadata of an export those of the database, and ties them to
// the object store under a new incarnation. No node may run. A run that was cut off
// leaves a database that is empty or one that the start of a node refuses or goes on
// with; it may be repeated.
func RestoreMeta(ctx context.Context, cfg Config, r io.Reader, o RestoreOptions, logger *slog.Logger) (_ RestoreReport, err error) {
	info, state, err := metalog.ReadExport(r)
	if err != nil {
		return RestoreReport{}, err
	}
	p := &parts{cfg: cfg, logger: logger}
	defer func() { err = errors.Join(err, p.close()) }()
	if strings.HasPrefix(cfg.metaURL(), "sqlite:") {
		if p.unlock, err = lockDataDir(cfg.DataDir); err != nil {
			return RestoreReport{}, err
		}
	}
	if err := p.openStores(ctx); err != nil {
		return RestoreReport{}, err
	}
	if err := p.checkRestoreStore(ctx, info, o); err != nil {
		return RestoreReport{}, err
	}
	if p.log, err = openLog(ctx, cfg, false, logger); err != nil {
		return RestoreReport{}, err
	}
	where := redactURL(cfg.metaURL())
	replaces, err := p.checkRestoreDatabase(ctx, o)
	if err != nil {
		return RestoreReport{}, fmt.Errorf("metadata database %s: %w", where, err)
	}
	if _, err := p.sinkStates(ctx, state); err != nil { // before anything is changed
		return RestoreReport{}, err
	}
	held := (*metalog.LeaseHeldError)(nil)
	switch err := metalog.Restore(ctx, p.log, info, state, replaces); {
	case errors.As(err, &held):
		return RestoreReport{}, fmt.Errorf("metadata database %s: node %d runs on it: stop all nodes first, and wait until its lease is over (%s)", where, held.Lease.Node, held.ExpiresIn)
	case err != nil:
		return RestoreReport{}, fmt.Errorf("metadata database %s: %w", where, err)
	}
	var lost storescan.Lost
	replica, err := storehead.Adopt(ctx, p.headDeps(func(l storescan.Lost) { lost = l }), metaConfig())
	if err != nil {
		return RestoreReport{}, fmt.Errorf("metadata database %s, object store %s: %w", where, redactURL(cfg.storageURI()), err)
	}
	return reportOf(info, replica.View(), lost), nil
}

// checkRestoreStore refuses a store that may be another cluster's.
func (p *parts) checkRestoreStore(ctx context.Context, info metalog.ExportInfo, o RestoreOptions) error {
	where := redactURL(p.cfg.storageURI())
	head, found, err := storehead.Look(ctx, p.objects)
	if err != nil && !errors.Is(err, mink.ErrCorrupt) {
		return fmt.Errorf("object store %s: %w", where, err)
	}
	is := "none"
	if found && err == nil {
		is = metalog.FormatIncarnation(head.Incarnation)
	}
	if is == info.Incarnation || is == strings.ToLower(o.Store) {
		return nil
	}
	what := fmt.Sprintf("it belongs to metadata of incarnation %s, the export is of %s: it is another cluster's, or a restore came between", is, info.Incarnation)
	if is == "none" {
		what = fmt.Sprintf("it does not say which metadata it belongs to (%s is missing or damaged): it is not the cluster's store, or was copied without it", storehead.Key)
	}
	return fmt.Errorf("object store %s: %s. Correct storage_uri; if it is the right store, repeat with --store %s", where, what, is)
}

// checkRestoreDatabase answers the head that may be replaced.
func (p *parts) checkRestoreDatabase(ctx context.Context, o RestoreOptions) (metalog.Position, error) {
	replica, err := metalog.Open(ctx, p.log, metaConfig(), p.logger)
	if err != nil {
		return metalog.Position{}, fmt.Errorf("it holds a log that cannot be read; restore into an empty database: %w", err)
	}
	state, at := replica.ViewAt()
	is := metalog.FormatIncarnation(state.Incarnation())
	switch {
	case at.Index == 0 && o.Replace == "":
		return at, nil
	case at.Index == 0:
		return at, fmt.Errorf("it is empty, there is nothing to replace: repeat without --replace: %w", mink.ErrConflict)
	case o.Replace == "":
		return at, fmt.Errorf("it holds the metadata of a cluster (incarnation %s, index %d, %d tables). Restore into an empty database; to give up what it holds, stop all nodes and repeat with --replace %s: %w",
			is, at.Index, countOf(state.AllTables()), is, mink.ErrExists)
	case strings.ToLower(o.Replace) != is:
		return at, fmt.Errorf("it holds metadata of incarnation %s, --replace says %s: %w", is, o.Replace, mink.ErrConflict)
	}
	return at, nil
}

func countOf[T any](seq iter.Seq[T]) (n int) {
	for range seq {
		n++
	}
	return n
}

func reportOf(info metalog.ExportInfo, view *cluster.State, lost storescan.Lost) RestoreReport {
	r := RestoreReport{
		Index: info.Index, Incarnation: metalog.FormatIncarnation(view.Incarnation()), Nodes: countOf(view.Nodes()), Tables: countOf(view.AllTables()), Buckets: countOf(view.Streams()),
		UnknownObjects: lost.Objects, UnknownBytes: lost.Bytes, CutLogs: len(lost.WALs),
	}
	for _, e := range lost.Ends {
		g := GivenOffsets{Bucket: e.Bucket, Known: e.Known, End: e.End}
		if t, ok := view.Table(e.Bucket.Table); ok {
			g.Table = t.Descriptor.Name()
		}
		r.Given = append(r.Given, g)
	}
	for _, s := range lost.Stopped {
		stopped := StoppedTable{Sink: s.Sink, Reason: s.Reason}
		if t, ok := view.Table(s.Table); ok {
			stopped.Table = t.Descriptor.Name()
		}
		r.Stopped = append(r.Stopped, stopped)
	}
	return r
}

// MetaSummary is what an export holds.
type MetaSummary struct {
	metalog.ExportInfo
	Nodes     int   `json:"nodes"`
	Databases int   `json:"databases"`
	Tables    int   `json:"tables"`
	Buckets   int   `json:"buckets"`
	Groups    int   `json:"groups"`
	Objects   int   `json:"objects"`
	Bytes     int64 `json:"bytes"` // of the objects
	// Pending are write-ahead logs that were not recovered: what they held beyond the
	// objects above is on the object store only.
	Pending int `json:"pending_logs"`
}

// InspectMeta reads an export, whole, and checks all of it.
func InspectMeta(r io.Reader) (MetaSummary, error) {
	info, state, err := metalog.ReadExport(r)
	if err != nil {
		return MetaSummary{}, err
	}
	s := MetaSummary{
		ExportInfo: info, Nodes: countOf(state.Nodes()), Databases: countOf(state.Databases()), Tables: countOf(state.AllTables()),
		Buckets: countOf(state.Streams()), Groups: countOf(state.Groups()), Objects: countOf(state.Objects()),
	}
	for o := range state.Objects() {
		s.Bytes += o.Size
	}
	for w := range state.WALs() {
		if !w.Recovered {
			s.Pending++
		}
	}
	return s, nil
}
