package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// floors are what the machine can do without any broker. Every slice holds one
// figure per round.
type floors struct {
	fsync     []float64 // MB/s of 4 MiB writes, each synced, to one file
	fsync64   []float64 // the same in pieces of 64 KiB
	publish   []float64 // MB/s of 4 MiB files: write, sync, link, sync the directory
	loopback  []float64 // MB/s over one TCP connection
	tcpCPU    []float64 // CPU-seconds per GB of both ends
	emptySync []float64 // ms of a small synced write
}

func (f *floors) add(g *floors) *floors {
	if f == nil {
		return g
	}
	f.fsync = append(f.fsync, g.fsync...)
	f.fsync64 = append(f.fsync64, g.fsync64...)
	f.publish = append(f.publish, g.publish...)
	f.loopback = append(f.loopback, g.loopback...)
	f.tcpCPU = append(f.tcpCPU, g.tcpCPU...)
	f.emptySync = append(f.emptySync, g.emptySync...)
	return f
}

func measureFloors(ctx context.Context, dir string, d time.Duration) (*floors, error) {
	f := &floors{}
	var errs []error
	note := func(to *[]float64, v float64, err error) {
		*to = append(*to, v)
		errs = append(errs, err)
	}
	mb, _, err := syncedWrites(ctx, dir, 4<<20, d)
	note(&f.fsync, mb, err)
	mb, _, err = syncedWrites(ctx, dir, 64<<10, d/2)
	note(&f.fsync64, mb, err)
	_, perWrite, err := syncedWrites(ctx, dir, 512, d/4)
	note(&f.emptySync, perWrite.Seconds()*1e3, err)
	mb, err = publishedFiles(ctx, dir, 4<<20, d)
	note(&f.publish, mb, err)
	mb, cpu, err := loopback(ctx, d)
	note(&f.loopback, mb, err)
	f.tcpCPU = append(f.tcpCPU, cpu)
	return f, errors.Join(errs...)
}

// syncedWrites appends pieces to a file, each followed by a sync.
func syncedWrites(ctx context.Context, dir string, piece int, d time.Duration) (mbPerSecond float64, perWrite time.Duration, err error) {
	f, err := os.CreateTemp(dir, "floor-")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	b := noise(piece)
	n, began := 0, time.Now()
	for time.Since(began) < d && ctx.Err() == nil {
		if _, err := f.Write(b); err != nil {
			return 0, 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, 0, err
		}
		n++
	}
	took := time.Since(began)
	return float64(n*piece) / 1e6 / took.Seconds(), took / time.Duration(max(n, 1)), ctx.Err()
}

// publishedFiles does what a directory store must for one object: write a
// temporary file, sync it, link it to its name, sync the directory.
func publishedFiles(ctx context.Context, dir string, size int, d time.Duration) (float64, error) {
	sub, err := os.MkdirTemp(dir, "floor-")
	if err != nil {
		return 0, err
	}
	b := noise(size)
	n, began := 0, time.Now()
	for ; time.Since(began) < d && ctx.Err() == nil; n++ {
		if err := publishOne(sub, b, n); err != nil {
			return 0, errors.Join(err, os.RemoveAll(sub))
		}
	}
	took := time.Since(began).Seconds()
	return float64(n*size) / 1e6 / took, errors.Join(ctx.Err(), os.RemoveAll(sub))
}

func publishOne(dir string, b []byte, n int) error {
	temp, name := filepath.Join(dir, fmt.Sprintf("t%d", n)), filepath.Join(dir, fmt.Sprintf("o%d", n))
	f, err := os.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(temp, name); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close(), os.Remove(temp))
}

func noise(n int) []byte {
	b := make([]byte, n)
	x := uint64(0x9e3779b97f4a7c15)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// loopback sends over one TCP connection to itself; the CPU is of both ends.
func loopback(ctx context.Context, d time.Duration) (mbPerSecond, cpuPerGB float64, err error) {
	l, err := listen(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer l.Close()
	received := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 1<<20))
			err = errors.Join(err, c.Close())
		}
		received <- err
	}()
	c, err := dial(ctx, l.Addr().String())
	if err != nil {
		return 0, 0, err
	}
	self := &process{pid: os.Getpid()}
	before, err := self.cpu()
	if err != nil {
		return 0, 0, err
	}
	b, n, began := make([]byte, 1<<20), 0, time.Now()
	for time.Since(began) < d && err == nil && ctx.Err() == nil {
		_, err = c.Write(b)
		n += len(b)
	}
	err = errors.Join(err, c.Close(), <-received)
	took := time.Since(began).Seconds()
	after, cpuErr := self.cpu()
	return float64(n) / 1e6 / took, (after - before).Seconds() / (float64(n) / 1e9), errors.Join(err, cpuErr)
}

// machine describes where this runs.
func machine() string {
	cpu, kernel := "unknown processor", ""
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, ok := strings.CutPrefix(s.Text(), "model name"); ok {
				cpu = strings.TrimLeft(name, "\t :")
				break
			}
		}
		_ = f.Close()
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(b))
	}
	return fmt.Sprintf("%s: %d x %s, Linux %s, %s, load average %.1f", time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		runtime.NumCPU(), cpu, kernel, runtime.Version(), loadAverage())
}

// loadAverage of the last minute; 0 when unknown.
func loadAverage() float64 {
	var v float64
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &v)
	}
	return v
}
