package fault

import (
	"context"
	"math"
	"math/rand/v2"
	"time"
)

// Dist is a log-normal distribution of durations.
type Dist struct {
	Median time.Duration // 0: no delay
	P99    time.Duration // at or below Median: always Median
}

// z99 is the standard normal's 99th percentile.
const z99 = 2.3263478740408408

func (d Dist) sample(r *rand.Rand) time.Duration {
	if d.Median <= 0 {
		return 0
	}
	if d.P99 <= d.Median {
		return d.Median
	}
	sigma := math.Log(float64(d.P99)/float64(d.Median)) / z99
	return time.Duration(float64(d.Median) * math.Exp(sigma*r.NormFloat64()))
}

// Latency is how long a store takes. A write lands half way through its delay.
type Latency struct {
	Put, Get, List, Delete Dist          // Head is a Get; uploads are Puts
	PerMiB                 time.Duration // added per MiB written or read
}

// S3Like is the store of the design's figures: PUT 30 ms (p99 90), GET 15 ms.
func S3Like() Latency {
	return Latency{
		Put:    Dist{30 * time.Millisecond, 90 * time.Millisecond},
		Get:    Dist{15 * time.Millisecond, 45 * time.Millisecond},
		List:   Dist{30 * time.Millisecond, 90 * time.Millisecond},
		Delete: Dist{20 * time.Millisecond, 60 * time.Millisecond},
	}
}

// S3StandardLike is S3's standard class as public measurements show it.
func S3StandardLike() Latency {
	return Latency{
		Put:    Dist{75 * time.Millisecond, 400 * time.Millisecond},
		Get:    Dist{30 * time.Millisecond, 200 * time.Millisecond},
		List:   Dist{60 * time.Millisecond, 300 * time.Millisecond},
		Delete: Dist{40 * time.Millisecond, 200 * time.Millisecond},
		PerMiB: 12 * time.Millisecond, // ~85 MB/s per connection
	}
}

// S3ExpressLike is S3's one-zone express class.
func S3ExpressLike() Latency {
	return Latency{
		Put:    Dist{7 * time.Millisecond, 20 * time.Millisecond},
		Get:    Dist{4 * time.Millisecond, 12 * time.Millisecond},
		List:   Dist{8 * time.Millisecond, 24 * time.Millisecond},
		Delete: Dist{5 * time.Millisecond, 15 * time.Millisecond},
		PerMiB: 8 * time.Millisecond,
	}
}

func (l Latency) of(op Op) Dist {
	switch op {
	case Get, Head:
		return l.Get
	case List:
		return l.List
	case Delete, AbortUpload:
		return l.Delete
	}
	return l.Put
}

func (l Latency) perByte(n int64) time.Duration {
	return time.Duration(float64(l.PerMiB) * float64(n) / (1 << 20))
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
