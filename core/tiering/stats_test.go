package tiering

import (
	"testing"
	"time"
)

// The first round has no round before it that its time could be counted from, and a
// dropped table has none to come.
func TestWhenTheNextRoundIsDue(t *testing.T) {
	seen := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	job := Job{Freshness: 3 * time.Minute, Buckets: []Bucket{{End: 1}}}
	for _, c := range []struct {
		what string
		e    *entry
		want time.Time
	}{
		{"no round yet", &entry{job: job, lags: seen}, seen},
		{"no round yet, no rows", &entry{job: Job{Freshness: job.Freshness}}, time.Time{}},
		{"a round before", &entry{job: job, lags: seen, full: seen.Add(-time.Minute)}, seen.Add(2 * time.Minute)},
		{"dropped", &entry{job: job, lags: seen, dropped: &Dropped{}}, time.Time{}},
		{"dropped, to be tried again", &entry{job: job, dropped: &Dropped{}, state: StateFailed, retry: seen}, seen},
	} {
		if got := c.e.stats(seen.Add(time.Second)).Due; !got.Equal(c.want) {
			t.Errorf("%s: due %v, want %v", c.what, got, c.want)
		}
	}
}
