package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suite is one run of everything.
type suite struct {
	n          int
	partitions []int
	brokers    []*broker
	load       load
	fill       int
	disk       string // scratch on a disk
	memory     string // scratch on a memory file system, or disk
	raw        io.Writer
	profiles   string
	what       []string
	idle       time.Duration
}

// sample is one line of the raw results.
type sample struct {
	Round      int
	What       string // produce, fetch
	Broker     string
	Partitions int
	Load       float64 // load average before it
	*result
}

// named collects repeated NAME=VALUE flags, in order.
type named []string

func (n *named) String() string     { return strings.Join(*n, " ") }
func (n *named) Set(v string) error { *n = append(*n, v); return nil }

func suiteCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("bench suite", flag.ContinueOnError)
	n := fs.Int("n", 3, "rounds")
	seconds := fs.Float64("seconds", 3, "measured seconds of one run")
	partitions := fs.String("partitions", "1,4,16", "partition counts")
	only := fs.String("brokers", "", "comma list; empty: all")
	what := fs.String("what", "floors,produce,fetch,paced,commits,cold,crash,idle", "comma list of what to measure")
	warm := fs.Int("warm", 0, "MiB to produce before a produce run is measured, for brokers that keep it on a store or disk: fills caches that take memory never used before, lets a JVM compile")
	record := fs.Int("record", 1024, "bytes of a record's value")
	scratch := fs.String("scratch", "", "directory on the disk to be measured; empty: the system's temporary one")
	memory := fs.String("memory", "/dev/shm", "directory on a memory file system, for the store with latency")
	raw := fs.String("raw", "", "file for the raw results, JSON lines")
	profiles := fs.String("profiles", "", "directory for CPU profiles of brokers with an HTTP port (the last round's)")
	idle := fs.Duration("idle", 15*time.Second, "how long an idle node is watched")
	kafka := fs.String("kafka-libs", "", "directory of Apache Kafka's jars: adds it twice, kafka-fsync (every append synced before its answer) and kafka (as shipped)")
	var minks, peers, pids named
	fs.Var(&minks, "mink", "NAME=PATH of a mink binary; may be repeated to compare builds")
	fs.Var(&peers, "peer", "NAME=HOST:PORT of a running Kafka broker; may be repeated")
	fs.Var(&pids, "peer-pid", "NAME=PID of a peer on this machine, for its CPU")
	if err := fs.Parse(args); err != nil {
		return err
	}
	s := &suite{n: *n, fill: 256 << 20, raw: io.Discard, profiles: *profiles, idle: *idle, what: strings.Split(*what, ",")}
	s.load = load{
		topic: "bench", record: *record, batchMax: 1 << 20, buffered: 128 << 20, warmup: time.Second, warmBytes: *warm << 20, opened: func() {},
		duration: time.Duration(*seconds * float64(time.Second)),
	}
	for _, p := range strings.Split(*partitions, ",") {
		k, err := strconv.Atoi(p)
		if err != nil || k < 1 {
			return fmt.Errorf("-partitions %q: want numbers such as 1,4,16", *partitions)
		}
		s.partitions = append(s.partitions, k)
	}
	if err := s.addBrokers(minks, peers, pids, *kafka, *only); err != nil {
		return err
	}
	if *raw != "" {
		f, err := os.Create(*raw)
		if err != nil {
			return err
		}
		defer f.Close()
		s.raw = f
	}
	cleanup, err := s.makeScratch(*scratch, *memory)
	if err != nil {
		return err
	}
	return errors.Join(s.run(ctx), cleanup())
}

func (s *suite) makeScratch(disk, memory string) (cleanup func() error, err error) {
	if s.disk, err = os.MkdirTemp(disk, "mink-bench-"); err != nil {
		return nil, err
	}
	if s.memory, err = os.MkdirTemp(memory, "mink-bench-"); err != nil {
		fmt.Printf("no memory file system at %s: the store with latency lies on the disk\n", memory)
		s.memory = filepath.Join(s.disk, "memory")
		err = os.Mkdir(s.memory, 0o700)
	}
	return func() error { return errors.Join(os.RemoveAll(s.disk), os.RemoveAll(s.memory)) }, err
}

// nodeName is the Mink node over a store with S3's latency.
const nodeName = "mink-30ms"

func (s *suite) addBrokers(minks, peers, pids named, kafkaLibs, only string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	all := []*broker{
		{name: "drop", command: []string{self, "broker", "drop"}},
		{name: "keep", command: []string{self, "broker", "keep"}},
		{name: "kfake", command: []string{self, "broker", "kfake"}},
	}
	for _, m := range minks {
		name, path, ok := strings.Cut(m, "=")
		if !ok {
			return fmt.Errorf("-mink %q: want NAME=PATH", m)
		}
		all = append(all, &broker{name: name, command: []string{
			path, "serve", "--data-dir", "%DIR%", "--log-level", "warn",
			"--listen", "127.0.0.1:0", "--kafka-listen", "%KAFKA%", "--http-listen", "127.0.0.1:0",
		}})
	}
	all = append(all, &broker{name: nodeName, command: []string{self, "broker", "node", "-dir", "%DIR%", "-kafka", "%KAFKA%"}})
	for _, p := range peers {
		name, addr, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("-peer %q: want NAME=HOST:PORT", p)
		}
		b := &broker{name: name, kafka: addr}
		for _, q := range pids {
			if v, ok := strings.CutPrefix(q, name+"="); ok {
				if b.pid, err = strconv.Atoi(v); err != nil {
					return fmt.Errorf("-peer-pid %q: %w", q, err)
				}
			}
		}
		all = append(all, b)
	}
	if kafkaLibs != "" {
		all = append(all, apacheKafka("kafka-fsync", kafkaLibs, true), apacheKafka("kafka", kafkaLibs, false))
	}
	for _, b := range all {
		if only == "" || slices.Contains(strings.Split(only, ","), b.name) {
			s.brokers = append(s.brokers, b)
		}
	}
	if len(s.brokers) == 0 {
		return fmt.Errorf("-brokers %q names none of them", only)
	}
	return nil
}

func (s *suite) wants(what string) bool { return slices.Contains(s.what, what) }

func (s *suite) run(ctx context.Context) error {
	fmt.Printf("%s\n\n", machine())
	var floors *floors
	var all []sample
	for round := range s.n {
		if s.wants("floors") {
			f, err := measureFloors(ctx, s.disk, s.load.duration)
			if err != nil {
				return err
			}
			floors = floors.add(f)
		}
		for _, what := range []string{"produce", "fetch"} {
			if !s.wants(what) {
				continue
			}
			for _, k := range s.partitions {
				for _, b := range s.brokers {
					if what == "fetch" && b.name == "drop" {
						continue
					}
					x, err := s.one(ctx, round, what, b, k)
					if err != nil {
						return fmt.Errorf("round %d, %s, %s, %d partitions: %w", round+1, what, b.name, k, err)
					}
					all = append(all, x)
				}
			}
		}
	}
	printFloors(floors)
	for _, what := range []string{"produce", "fetch"} {
		if s.wants(what) {
			s.printTable(what, all)
		}
	}
	if s.wants("paced") {
		if err := s.paced(ctx); err != nil {
			return err
		}
	}
	if s.wants("commits") {
		if err := s.commits(ctx); err != nil {
			return err
		}
	}
	if s.wants("cold") {
		if err := s.cold(ctx); err != nil {
			return err
		}
	}
	if s.wants("crash") {
		if err := s.crash(ctx); err != nil {
			return err
		}
	}
	if s.wants("idle") {
		return s.watchIdle(ctx)
	}
	return nil
}

// with runs f against a fresh process of the broker.
func (s *suite) with(ctx context.Context, b *broker, f func(*process) error) error {
	scratch := s.disk
	if b.name == nodeName {
		scratch = s.memory
	}
	p, err := b.start(ctx, scratch)
	if err != nil {
		return err
	}
	err = f(p)
	if err != nil && p.stderr != nil && !interrupted(err) {
		err = fmt.Errorf("%w; the broker's log:\n%s", err, p.stderr)
	}
	return errors.Join(err, p.stop())
}

func (s *suite) one(ctx context.Context, round int, what string, b *broker, partitions int) (sample, error) {
	x := sample{Round: round, What: what, Broker: b.name, Partitions: partitions, Load: loadAverage()}
	l := s.load
	l.partitions = partitions
	err := s.with(ctx, b, func(p *process) (err error) {
		begin, wait := s.profiler(ctx, p, x)
		l.opened = begin
		if what == "produce" {
			if p.http == "" && b.prepare == nil {
				l.warmBytes = 0 // floors and kfake keep all or nothing: they have no steady state to reach
			}
			x.result, err = produce(ctx, p, l)
		} else {
			x.result, err = fetch(ctx, p, l, s.fill)
		}
		return errors.Join(err, wait())
	})
	if err != nil {
		return x, err
	}
	fmt.Fprintf(os.Stderr, "round %d  %-7s %2d partitions  %-20s %7.1f MB/s  %5.2f CPU-s/GB  load %.1f\n",
		round+1, what, partitions, b.name, x.mbPerSecond(), x.cpuPerGB(), x.Load)
	x.Latencies = nil
	line, err := json.Marshal(x)
	if err != nil {
		return x, err
	}
	_, err = fmt.Fprintf(s.raw, "%s\n", line)
	return x, err
}

// profiler profiles the last round: begin it when the measured time begins, wait
// for it at the end.
func (s *suite) profiler(ctx context.Context, p *process, x sample) (begin func(), wait func() error) {
	if s.profiles == "" || p.http == "" || x.Round != s.n-1 {
		return func() {}, func() error { return nil }
	}
	name := fmt.Sprintf("%s-%s-%d.pprof", strings.ReplaceAll(x.Broker, " ", "_"), x.What, x.Partitions)
	done := make(chan error, 1)
	started := false
	begin = func() {
		started = true
		go func() {
			done <- p.profile(ctx, filepath.Join(s.profiles, name), max(1, int(s.load.duration.Seconds())))
		}()
	}
	return begin, func() error {
		if !started {
			return nil
		}
		return <-done
	}
}
