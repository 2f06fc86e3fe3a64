package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/fault/memnet"
	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// Ports of every process.
const (
	flightPort = 8815
	kafkaPort  = 9092
)

// Listener is one more service of a process, beside Flight. Run closes what it listens on.
type Listener interface {
	Run(ctx context.Context) error
}

// Net is the network between the processes, and between them and clients.
func (w *World) Net() *memnet.Network { return w.net }

// hostOf is the host of a new process: its node's, unless an older process still holds that.
func (w *World) hostOf(id mink.NodeID) *memnet.Host {
	name := fmt.Sprintf("node-%d", id)
	if w.net.Listens(fmt.Sprintf("%s:%d", name, flightPort)) {
		w.mu.Lock()
		name = fmt.Sprintf("node-%d-%d", id, len(w.mu.processes))
		w.mu.Unlock()
	}
	return w.net.Host(name)
}

func isNode(h *memnet.Host) bool { return strings.HasPrefix(h.Name(), "node-") }

func isClient(h *memnet.Host) bool { return !isNode(h) }

func everybody(*memnet.Host) bool { return true }

// FlightAddress and KafkaAddress are where the process listens.
func (p *Process) FlightAddress() string { return fmt.Sprintf("%s:%d", p.host.Name(), flightPort) }

// KafkaAddress is where a Config.Kafka of the process listens.
func (p *Process) KafkaAddress() string { return fmt.Sprintf("%s:%d", p.host.Name(), kafkaPort) }

// Host is the process's place on the network.
func (p *Process) Host() *memnet.Host { return p.host }

// listen opens the process's ports: connections wait there until it serves.
func (p *Process) listen() (err error) {
	if p.listeners[0], err = p.host.Listen(flightPort); err != nil {
		return err
	}
	if p.world.cfg.Kafka != nil {
		p.listeners[1], err = p.host.Listen(kafkaPort)
	}
	return err
}

// openServers builds what serves the ports, and what asks other processes.
func (p *Process) openServers() error {
	pcfg := peers.Default()
	pcfg.Dial = p.host.Dial
	p.peers = peers.New(pcfg, func() *cluster.State { return p.Node().View() })
	fcfg := flight.Default()
	fcfg.DrainTimeout = 2 * time.Second
	fcfg.ForwardWait, fcfg.ForwardIdle = 5*p.world.cfg.LeaseTTL, 10*time.Second
	if p.world.cfg.Flight != nil {
		p.world.cfg.Flight(&fcfg)
	}
	var err error
	if p.flight, err = flight.New(fcfg, backend{p.Node(), p}, nil, p.world.cfg.Logger.With("process", p.ID), flight.WithPeers(p.peers)); err != nil {
		return err
	}
	p.flight.OpenOn(p.listeners[0])
	if p.world.cfg.Kafka != nil {
		p.kafka, err = p.world.cfg.Kafka(p, p.listeners[1])
	}
	return err
}

// serve serves the ports from when the node is ready until ctx is done. What breaks because
// the process died is no error.
func (p *Process) serve(ctx context.Context) error {
	if err := p.WaitReady(ctx); err != nil {
		for _, l := range p.listeners {
			if l != nil {
				_ = l.Close()
			}
		}
		return nil //nolint:nilerr // it ends before it was ready
	}
	kafka := make(chan error, 1)
	go func() {
		if p.kafka == nil {
			kafka <- nil
			return
		}
		kafka <- p.kafka.Run(ctx)
	}()
	return errors.Join(p.flight.Run(ctx), <-kafka)
}

// askRelease asks a bucket's leader to move it, as core/server does.
func (p *Process) askRelease(ctx context.Context, leader cluster.Node, ref mink.BucketRef, to mink.NodeID) error {
	if id, epoch := p.Node().Self(); id == leader.ID && epoch == leader.Epoch {
		return p.world.move(ctx, p, ref, to)
	}
	return p.peers.Action(ctx, leader, api.ActionReleaseBucket, api.ReleaseBucket{Bucket: ref, To: to}, nil)
}

// NewClient makes a Go client on a host of its own that knows the processes that run now.
// Close it.
func (w *World) NewClient(host *memnet.Host) (*client.Client, error) {
	cfg := client.Default()
	cfg.Bootstrap, cfg.Dial = nil, host.Dial
	for _, p := range w.Processes() {
		cfg.Bootstrap = append(cfg.Bootstrap, p.FlightAddress())
	}
	if len(cfg.Bootstrap) == 0 {
		return nil, fmt.Errorf("no process runs: %w", mink.ErrUnavailable)
	}
	return client.New(cfg)
}

// backend is the node behind a process's Flight listener.
type backend struct {
	*node.Node
	p *Process
}

var _ flight.Backend = backend{}

// Log implements flight.Backend.
func (b backend) Log(ref mink.BucketRef) (flight.Log, error) {
	l, err := b.Node.Log(ref)
	if err != nil {
		return nil, err
	}
	return flight.FromTablet(l), nil
}

// KV implements flight.Backend.
func (b backend) KV(ctx context.Context, ref mink.BucketRef) (flight.KV, error) {
	t, err := b.Node.KV(ctx, ref)
	if err != nil {
		return nil, err
	}
	return flight.FromKV(t), nil
}

// Damaged implements flight.Backend.
func (b backend) Damaged() []api.DamagedLog { return b.p.Coordinator().Damaged() }

// AcceptLoss implements flight.Backend.
func (b backend) AcceptLoss(ctx context.Context, r api.AcceptLoss) (api.LossReport, error) {
	return b.p.Coordinator().AcceptLoss(ctx, r)
}

// StalledSinks implements flight.Backend.
func (backend) StalledSinks() []api.StalledSink { return nil }

// TierTable implements flight.Backend: processes of the simulation have no sinks.
func (backend) TierTable(context.Context, mink.TableID, string, map[mink.BucketRef]mink.Offset) (api.TierReport, error) {
	return api.TierReport{}, mink.ErrUnsupported
}

// MaintainTable implements flight.Backend: processes of the simulation have no sinks.
func (backend) MaintainTable(context.Context, mink.TableID, api.MaintainTable) (api.MaintenanceReport, error) {
	return api.MaintenanceReport{}, mink.ErrUnsupported
}

// Rebalance implements flight.Backend.
func (b backend) Rebalance(ctx context.Context, dryRun bool, each func(api.MoveProgress)) (api.RebalanceReport, error) {
	return b.p.Coordinator().Rebalance(ctx, dryRun, each)
}

// RemoveNode implements flight.Backend.
func (b backend) RemoveNode(ctx context.Context, r api.RemoveNode) (api.RemovedNode, error) {
	return b.p.Coordinator().RemoveNode(ctx, r)
}

// ReleaseBucket implements flight.Backend.
func (b backend) ReleaseBucket(ctx context.Context, ref mink.BucketRef, to mink.NodeID) error {
	return b.p.world.move(ctx, b.p, ref, to)
}

// Settings implements flight.Backend.
func (b backend) Settings() map[string]string { return map[string]string{} }

// Stats implements flight.Backend.
func (b backend) Stats() api.Stats {
	s := b.Node.Stats()
	return api.Stats{Node: s.Node, Epoch: s.Epoch, AppliedIndex: s.Applied}
}
