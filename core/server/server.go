// Package server puts a node together: configuration, stores, metadata, the
// node, the coordinator and the listeners, started and stopped in an order that
// loses nothing.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/icebergrest"
	"github.com/mink-project/mink/core/kafka"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/ops"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/core/tiering"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// Version is stamped by the build.
var Version = "dev"

// featureLevel gates commands that older nodes do not know.
const featureLevel = 1

// Addresses is where a started node listens; "" for a port that is off.
type Addresses struct {
	Flight, Kafka, HTTP string
}

// parts is what a node is made of, in the order of their opening.
type parts struct {
	cfg         Config
	given       Given // what is set is used instead of what cfg says
	logger      *slog.Logger
	unlock      func() error
	plugins     *pluginhost.Host
	objects     objstore.Store // of records
	wal         objstore.Store
	log         metalog.Log
	replica     *metalog.Replica
	head        *storehead.Keeper
	warehouse   *lake.Warehouse // nil: no lake
	iceberg     *icebergrest.Server
	node        *node.Node
	coordinator *coordinator.Coordinator
	sinks       map[string]sink.Sink // by name
	tiering     *tiering.Tiering
	ops         *ops.Server
	kafka       *kafka.Server // nil once it runs
	flight      *flight.Server
	peers       *peers.Pool
	inflation   *tablet.Inflation // of Flight's puts
	http        net.Listener
	addresses   Addresses // bound
}

// Ready is what a node says of itself once it serves.
type Ready struct {
	Addresses
	// Missing names the buckets that stay closed until a person acts, and why; ""
	// when none does.
	Missing string
}

// Given is what a node reaches the world by, when that is not what its configuration
// says: several nodes of one process share a store and a log, and their calls to each
// other can be held up.
type Given struct {
	Objects objstore.Store
	WAL     objstore.Store // nil: Objects
	Log     metalog.Log
	// Sinks are used instead of those that the configuration makes, of the same name.
	Sinks map[string]sink.Sink
	// WrapSink, when set, gets every other sink and answers what is used in its place.
	WrapSink func(name string, s sink.Sink) sink.Sink
	// WrapLake, when set, gets what the lake is made of and answers what it is made of
	// instead: another one's store, another one's catalog.
	WrapLake func(c lake.WarehouseConfig) lake.WarehouseConfig
	// Dial connects to another node, at host:port; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Run runs a node until ctx is done. ready is called once, when the node serves.
func Run(ctx context.Context, cfg Config, logger *slog.Logger, ready func(Ready)) error {
	return RunOn(ctx, cfg, Given{}, logger, ready)
}

// RunOn is Run on stores and a metadata log that are open; it closes them. It is
// for tests, of clusters in one process. The zero Given is what cfg says.
func RunOn(ctx context.Context, cfg Config, given Given, logger *slog.Logger, ready func(Ready)) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	p := &parts{cfg: cfg, given: given, logger: logger, inflation: inflation()}
	if err := p.open(ctx); err != nil {
		return errors.Join(err, p.close())
	}
	err := p.run(ctx, ready)
	return errors.Join(err, p.close())
}

// open binds every port, then opens the stores, and builds every part before the
// node registers: a port in use makes no store and no database, and a wrong path
// changes nothing in the cluster.
func (p *parts) open(ctx context.Context) (err error) {
	if p.unlock, err = lockDataDir(p.cfg.DataDir); err != nil {
		return err
	}
	if err := p.openListeners(ctx); err != nil {
		return err
	}
	if err := p.openStorage(ctx); err != nil {
		return err
	}
	return p.buildNode()
}

func (p *parts) openStorage(ctx context.Context) (err error) {
	if err := p.openStores(ctx); err != nil {
		return err
	}
	if p.log = p.given.Log; p.log == nil {
		if p.log, err = openLog(ctx, p.cfg, false, p.logger); err != nil {
			return err
		}
	}
	p.replica, p.head, err = storehead.Open(ctx, p.headDeps(nil), metaConfig(), p.cfg.AcceptMetadata)
	if err != nil {
		return fmt.Errorf("metadata database %s, object store %s: %w", redactURL(p.cfg.metaURL()), redactURL(p.cfg.storageURI()), err)
	}
	if err := p.openSinks(ctx); err != nil {
		return err
	}
	return p.openLake(ctx)
}

func (p *parts) openStores(ctx context.Context) (err error) {
	if p.plugins, err = newPlugins(p.cfg, p.logger); err != nil {
		return err
	}
	if p.given.Objects != nil {
		p.objects, p.wal = p.given.Objects, p.given.Objects
		if p.given.WAL != nil {
			p.wal = p.given.WAL
		}
		return nil
	}
	if p.objects, err = openStore(ctx, p.plugins, p.cfg.storageURI(), p.cfg.StorageOptions); err != nil {
		return err
	}
	p.wal = p.objects
	if p.cfg.ownWAL() {
		p.wal, err = openStore(ctx, p.plugins, p.cfg.walURI(), p.cfg.walOptions())
	}
	return err
}

func (p *parts) openListeners(ctx context.Context) (err error) {
	if p.cfg.HTTPListen != off {
		if p.http, err = listen(ctx, "http_listen", p.cfg.HTTPListen); err != nil {
			return err
		}
	}
	p.ops = ops.New(p.logger, p.readiness, p.figures)
	if p.cfg.KafkaListen != off {
		kcfg := kafka.Default()
		kcfg.Listen = p.cfg.KafkaListen
		kcfg.ClusterID = p.cfg.ClusterID
		kcfg.Database = p.cfg.KafkaDatabase
		kcfg.LogDir = redactURL(p.cfg.storageURI())
		kcfg.AutoCreateTopics = p.cfg.AutoCreateTopics
		kcfg.DefaultPartitions = p.cfg.DefaultPartitions
		kcfg.GroupInitialDelay = time.Duration(p.cfg.GroupInitialRebalanceDelay)
		kcfg.GroupMembersMax = int(p.cfg.GroupMembersMax)
		if p.kafka, err = kafka.New(kcfg, kafka.OnNode(func() kafka.Node { return p.node }), p.ops.Kafka(), p.logger); err != nil {
			return err
		}
		if err := p.kafka.Open(ctx); err != nil {
			return inUse("kafka_listen", p.cfg.KafkaListen, err)
		}
	}
	pcfg := peers.Default()
	pcfg.MessageBytesMax, pcfg.Dial = int(p.cfg.MessageBytesMax), p.given.Dial
	p.peers = peers.New(pcfg, func() *cluster.State { return p.node.View() })
	if p.flight, err = openFlight(ctx, p.cfg, p, p.ops.Flight(), p.logger); err != nil {
		return inUse("listen", p.cfg.Listen, err)
	}
	return nil
}

func (p *parts) buildNode() (err error) {
	p.addresses = p.bound()
	scfg, err := p.streamConfig()
	if err != nil {
		return err
	}
	ncfg := node.Default()
	ncfg.NodeID, ncfg.Version, ncfg.FeatureLevel = mink.NodeID(p.cfg.NodeID), Version, featureLevel
	a := p.advertised()
	ncfg.FlightAddress, ncfg.KafkaAddress, ncfg.HTTPAddress = a.Flight, a.Kafka, a.HTTP
	ncfg.LeaseTTL = time.Duration(p.cfg.LeaseTTL)
	ncfg.LogRetentionInterval = time.Duration(p.cfg.LogRetentionInterval)
	ncfg.KVSnapshots.Interval, ncfg.KVSnapshots.Bytes = time.Duration(p.cfg.KVSnapshotInterval), int64(p.cfg.KVSnapshotBytes)
	ncfg.ReadGrace = time.Duration(p.cfg.ReadGrace)
	ncfg.KVSnapshots.Retained = int(p.cfg.KVSnapshotsRetained)
	ncfg.TopicCleaningInterval = time.Duration(p.cfg.TopicCleaningInterval)
	ncfg.CleanMapBytes = min(ncfg.CleanMapBytes, memoryLimit()/32)
	ncfg.GroupCommitInterval = time.Duration(p.cfg.GroupCommitInterval)
	ncfg.KVDir, ncfg.KVIdleClose = filepath.Join(p.cfg.DataDir, "kv"), time.Duration(p.cfg.KVIdleClose)
	ncfg.KVShared = p.kvShared()
	ncfg.Stream = scfg
	p.node, err = node.New(ncfg, node.Deps{
		Meta: p.replica, Log: p.log, Head: p.head, Objects: p.objects, WALStore: p.wal,
		Registered: func() { p.coordinator.Wake() },
		Stuck:      func(epoch mink.NodeEpoch) bool { return p.coordinator.Stuck(epoch) },
		CheckSink:  p.checkSink,
		Logger:     p.logger,
	})
	if err != nil {
		return err
	}
	ccfg := coordinator.Default()
	ccfg.LeaseTTL = time.Duration(p.cfg.LeaseTTL)
	ccfg.Tick = time.Duration(p.cfg.CoordinatorTick)
	ccfg.SnapshotInterval = time.Duration(p.cfg.MetadataSnapshotInterval)
	ccfg.ProducerOffsetsTTL = time.Duration(p.cfg.ProducerOffsetsTTL)
	ccfg.GroupOffsetsRetention = time.Duration(p.cfg.GroupOffsetsRetention)
	ccfg.NodeRetention = time.Duration(p.cfg.NodeRetention)
	ccfg.WALWindow = scfg.WALWindow
	ccfg.CleanInterval, ccfg.DestroyGrace = scfg.CleanInterval, scfg.DestroyGrace
	ccfg.SweepInterval, ccfg.OrphanAge = scfg.SweepInterval, scfg.OrphanAge
	p.coordinator, err = coordinator.New(ccfg, coordinator.Deps{
		Meta: p.replica, Log: p.log, Head: p.head, WALStore: p.wal, Objects: p.objects, Self: p.node.Self, Stopped: p.node.Look, Release: p.askRelease, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	return p.buildTiering()
}

// askRelease asks a bucket's leader to move it.
func (p *parts) askRelease(ctx context.Context, leader cluster.Node, ref mink.BucketRef, to mink.NodeID) error {
	if id, epoch := p.node.Self(); id == leader.ID && epoch == leader.Epoch {
		return p.node.ReleaseBucket(ctx, ref, to)
	}
	return p.peers.Action(ctx, leader, api.ActionReleaseBucket, api.ReleaseBucket{Bucket: ref, To: to}, nil)
}

// inflation is what compressed batches of writers may take while they are unpacked.
func inflation() *tablet.Inflation {
	return tablet.NewInflation(min(max(memoryLimit()/8, 32<<20), 256<<20), 10*time.Second)
}

// kvShared is what the stores of primary-key buckets may take of this machine.
func (p *parts) kvShared() kv.SharedConfig {
	c := kv.DefaultShared()
	c.CacheBytes = min(max(memoryLimit()/16, 64<<20), 512<<20)
	if p.cfg.KVCacheBytes > 0 {
		c.CacheBytes = int64(p.cfg.KVCacheBytes)
	}
	c.CompactionsMax = max(runtime.GOMAXPROCS(0)/2, 1)
	c.PendingBytesMax = min(c.PendingBytesMax, memoryLimit()/16)
	c.Inflation = p.inflation
	return c
}

// streamConfig is the engine's default for this store and machine, with what
// the operator set.
func (p *parts) streamConfig() (stream.Config, error) {
	c := stream.Default(p.wal.Capabilities(), memoryLimit())
	c.WALUploadInterval = time.Duration(p.cfg.WALUploadInterval)
	c.WALBatchBytes = int64(p.cfg.WALBatchBytes)
	c.WALBulkBytesMax = max(c.WALBulkBytesMax, c.WALBatchBytes)
	c.WALGiveUpAfter = 2 * time.Duration(p.cfg.LeaseTTL)
	c.DestroyGrace = time.Duration(p.cfg.ObjectGrace)
	c.ReadTimeout = min(c.ReadTimeout, max(c.DestroyGrace, time.Second)) // deletion waits for both
	c.CompactInterval = time.Duration(p.cfg.CompactionInterval)
	c.CleanInterval = time.Duration(p.cfg.ObjectCleanupInterval)
	c.OrphanAge = time.Duration(p.cfg.OrphanAge)
	c.SweepInterval = c.OrphanAge
	if p.cfg.WALBatchInterval > 0 {
		c.WALBatchInterval = time.Duration(p.cfg.WALBatchInterval)
	}
	if p.cfg.WALIdleWait > 0 {
		c.WALIdleWait = time.Duration(p.cfg.WALIdleWait)
	}
	if p.cfg.LogCacheBytes > 0 {
		c.LogCacheBytes = int64(p.cfg.LogCacheBytes)
		c.UploadBytes = min(c.UploadBytes, c.LogCacheBytes*7/10)
	}
	if p.cfg.BlockCacheBytes > 0 {
		c.BlockCacheBytes = int64(p.cfg.BlockCacheBytes)
	}
	return c, c.Validate()
}

func listen(ctx context.Context, key, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	return l, inUse(key, addr, err)
}

// inUse says what to do about a port that cannot be had.
func inUse(key, addr string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s %s: the port is in use; stop the process that holds it or choose another address: %w", key, addr, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s %s: not allowed to listen there; choose a port above 1023: %w", key, addr, err)
	default:
		return fmt.Errorf("%s %s: %w", key, addr, err)
	}
}

func (p *parts) bound() Addresses {
	a := Addresses{Flight: p.flight.Addr().String()}
	if p.kafka != nil {
		a.Kafka = p.kafka.Addr().String()
	}
	if p.http != nil {
		a.HTTP = p.http.Addr().String()
	}
	return a
}

// advertised is what other nodes and clients are told.
func (p *parts) advertised() Addresses {
	a := p.addresses
	if p.cfg.Advertise != "" {
		a.Flight = p.cfg.Advertise
	}
	if p.cfg.KafkaAdvertise != "" && p.kafka != nil {
		a.Kafka = p.cfg.KafkaAdvertise
	}
	return a
}

// run starts from the inside out and stops from the outside in: listeners stop
// reading first and answer what they read; then the node drains; the metadata
// replica, which the drain needs, ends last.
func (p *parts) run(ctx context.Context, ready func(Ready)) error {
	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInner()
	middle, stopMiddle := context.WithCancel(inner)
	defer stopMiddle()
	outer, stopOuter := context.WithCancel(ctx)
	defer stopOuter()

	var in, mid, out errgroup.Group
	in.Go(func() error {
		defer stopOuter()
		return p.replica.Run(inner)
	})
	mid.Go(func() error {
		defer stopOuter()
		return p.node.Run(middle)
	})
	mid.Go(func() error { return p.coordinator.Run(middle) })
	mid.Go(func() error { return p.tiering.Run(middle) })
	mid.Go(func() error { return p.peers.Run(middle, p.replica.Changed) })

	err := p.serve(outer, &out, stopOuter, ready)
	stopOuter()
	err = errors.Join(err, out.Wait())
	stopMiddle()
	err = errors.Join(err, mid.Wait())
	p.keepHead(inner)
	stopInner()
	return errors.Join(err, in.Wait())
}

// keepHead leaves on the store what the drained node knew: a database that is
// restored between this end and the next start is noticed then.
func (p *parts) keepHead(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	if err := p.head.Keep(ctx); err != nil {
		p.logger.Warn("the object store does not remember the last metadata entries", "error", err)
	}
}

// keepTimeout bounds what a stopping node waits for the store.
const keepTimeout = 5 * time.Second

// serve opens the ports to clients once the node is ready, and returns when ctx
// is done.
func (p *parts) serve(ctx context.Context, g *errgroup.Group, stop func(), ready func(Ready)) error {
	if p.http != nil {
		g.Go(func() error {
			defer stop()
			return p.ops.Serve(ctx, p.http)
		})
	}
	if err := p.node.WaitReady(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop before it was ready
		}
		return err
	}
	if k := p.kafka; k != nil {
		p.kafka = nil // Run closes it
		g.Go(func() error {
			defer stop()
			return k.Run(ctx)
		})
	}
	g.Go(func() error {
		defer stop()
		return p.flight.Run(ctx)
	})
	_, missing := p.readiness()
	ready(Ready{p.addresses, missing})
	<-ctx.Done()
	return nil
}

// close frees whatever open built, newest first.
func (p *parts) close() error {
	var errs []error
	if p.flight != nil {
		errs = append(errs, p.flight.Close())
	}
	if p.kafka != nil {
		// Run with an ended context closes a listener that never ran; one that ran
		// is closed already.
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		errs = append(errs, p.kafka.Run(ended))
	}
	if p.http != nil {
		if err := p.http.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, p.closeSinks())
	if p.warehouse != nil {
		errs = append(errs, p.warehouse.Catalog().Close())
	}
	if p.log != nil {
		errs = append(errs, p.log.Close())
	}
	if p.wal != nil && p.wal != p.objects {
		errs = append(errs, p.wal.Close())
	}
	if p.objects != nil {
		errs = append(errs, p.objects.Close())
	}
	if p.plugins != nil {
		errs = append(errs, p.plugins.Close())
	}
	if p.unlock != nil {
		errs = append(errs, p.unlock())
	}
	return errors.Join(errs...)
}

func (p *parts) readiness() (bool, string) {
	if p.node == nil {
		return false, "starting"
	}
	ok, reason := p.node.Ready()
	if damaged := p.coordinator.Damaged(); !ok && len(damaged) > 0 {
		d := damaged[0]
		reason += fmt.Sprintf("; the write-ahead log of node %d, epoch %d, is damaged: mink cluster accept-loss shows what is lost", d.Node, d.Epoch)
	}
	return ok, reason
}
