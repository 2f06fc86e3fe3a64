package partition

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the machine may have no zones

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

func schedule(t testing.TB, zone string, options ...string) *Schedule {
	t.Helper()
	m := map[string]string{"auto_partition.time_zone": zone}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		m["auto_partition."+name] = value
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSchedule(descriptor(t, []string{"d"}, m, "d STRING"), loc)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func flat(values [][]string) string {
	var names []string
	for _, v := range values {
		names = append(names, strings.Join(v, "/"))
	}
	return strings.Join(names, " ")
}

func TestPrecreate(t *testing.T) {
	for _, c := range []struct{ unit, zone, now, want string }{
		{"day", "UTC", "2024-02-28T23:59:59Z", "2024-02-28 2024-02-29 2024-03-01"},
		{"day", "Asia/Tokyo", "2024-02-28T15:00:00Z", "2024-02-29 2024-03-01 2024-03-02"},
		{"day", "America/New_York", "2024-01-01T04:59:59Z", "2023-12-31 2024-01-01 2024-01-02"},
		{"month", "UTC", "2024-11-30T00:00:00Z", "2024-11 2024-12 2025-01"},
		{"quarter", "UTC", "2024-09-30T23:59:59Z", "2024-Q3 2024-Q4 2025-Q1"},
		{"quarter", "Pacific/Auckland", "2024-09-30T23:59:59Z", "2024-Q4 2025-Q1 2025-Q2"},
		{"year", "UTC", "2024-12-31T23:59:59Z", "2024 2025 2026"},
		{"hour", "UTC", "2024-12-31T22:59:59Z", "2024-12-31-22 2024-12-31-23 2025-01-01-00"},
		{"hour", "Asia/Kolkata", "2024-01-01T00:15:00Z", "2024-01-01-05 2024-01-01-06 2024-01-01-07"},
		// Berlin skips 02:00-03:00 on 2024-03-31, and repeats it on 2024-10-27.
		{"hour", "Europe/Berlin", "2024-03-31T00:30:00Z", "2024-03-31-01 2024-03-31-03 2024-03-31-04"},
		{"hour", "Europe/Berlin", "2024-10-27T00:30:00Z", "2024-10-27-02 2024-10-27-03 2024-10-27-04"},
		{"hour", "Europe/Berlin", "2024-10-27T01:30:00Z", "2024-10-27-02 2024-10-27-03 2024-10-27-04"},
		// Lord Howe moves by half an hour: 02:00 becomes 02:30, so 02 still exists.
		{"hour", "Australia/Lord_Howe", "2024-10-05T15:15:00Z", "2024-10-06-01 2024-10-06-02 2024-10-06-03"},
		// Santiago skips the midnight hour of 2024-09-08; days are calendar days.
		{"day", "America/Santiago", "2024-09-08T03:59:59Z", "2024-09-07 2024-09-08 2024-09-09"},
		{"hour", "America/Santiago", "2024-09-08T03:30:00Z", "2024-09-07-23 2024-09-08-01 2024-09-08-02"},
	} {
		s := schedule(t, c.zone, "time_unit="+c.unit, "num_precreate=2")
		if got := flat(s.Precreate(instant(t, c.now))); got != c.want {
			t.Errorf("%s in %s at %s: %s, want %s", c.unit, c.zone, c.now, got, c.want)
		}
	}
	if got := flat(schedule(t, "UTC", "time_unit=day", "num_precreate=0").Precreate(instant(t, "2024-01-01T00:00:00Z"))); got != "2024-01-01" {
		t.Error(got)
	}
}

func TestDropAndCheckWrite(t *testing.T) {
	s := schedule(t, "UTC", "time_unit=day", "num_retention=2")
	now := instant(t, "2024-03-02T00:00:00Z")
	existing := [][]string{{"2024-03-03"}, {"2024-02-28"}, {"2024-02-29"}, {"2024-03-02"}, {"by hand"}, {"2023-01-01"}, {"2024-03-01"}}
	if got := flat(s.Drop(existing, now)); got != "2023-01-01 2024-02-28" {
		t.Error(got)
	}
	for value, want := range map[string]string{
		"2024-02-29": "", "2024-03-02": "", "2999-01-01": "",
		"2024-02-28": `partition "2024-02-28" is past retention, the oldest that is kept is "2024-02-29"`,
		"2024-2-28":  `automatic partitions by day have names such as "2024-03-31"`,
		"2024-02-30": "have names such as", "": "have names such as", "2024-02": "have names such as", "2024-02-28-01": "have names such as",
	} {
		err := s.CheckWrite([]string{value}, now)
		if want == "" && err != nil || want != "" && (!errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
	if err := s.CheckWrite(nil, now); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
	all := schedule(t, "UTC", "time_unit=day", "num_retention=0")
	if got := all.Drop(existing, now); len(got) != 0 {
		t.Errorf("retention 0 drops %v", got)
	}
	if err := all.CheckWrite([]string{"0001-01-01"}, now); err != nil {
		t.Error(err)
	}
}

func TestSeveralKeys(t *testing.T) {
	d := descriptor(t, []string{"region", "d"}, map[string]string{"auto_partition.time_unit": "month", "auto_partition.key": "d", "auto_partition.num_precreate": "0", "auto_partition.num_retention": "1"}, "region STRING", "d STRING")
	s, err := NewSchedule(d, time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	now := instant(t, "2024-03-02T00:00:00Z")
	if got := s.Precreate(now); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if got := flat(s.Drop([][]string{{"us", "2024-01"}, {"eu", "2024-01"}, {"eu", "2024-02"}, {"eu", "2023-12"}}, now)); got != "eu/2023-12 eu/2024-01 us/2024-01" {
		t.Error(got)
	}
	if _, err := NewSchedule(descriptor(t, nil, nil, "d STRING"), time.UTC); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	for unit, texts := range map[string][]string{
		"hour": {"2024-03-31-24", "2024-03-31", "2024-03-31-7"}, "day": {"2024-13-01"}, "month": {"2024-13", "2024-1"},
		"quarter": {"2024-Q5", "2024-Q0", "2024-q1", "20x4-Q1", "2024-Q1 "}, "year": {"24", "20245", "abcd"},
	} {
		s := schedule(t, "UTC", "time_unit="+unit)
		for _, text := range texts {
			if u, err := s.parse(text); !errors.Is(err, mink.ErrInvalid) {
				t.Errorf("%s %q: %v, %v", unit, text, u, err)
			}
		}
	}
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia", "America/Santiago", "Africa/Casablanca", "Pacific/Chatham"}

// Names are one-to-one with units and sort as they do; a day's DATE value is its
// name; precreation covers every instant that follows; what expired stays expired.
func TestScheduleProperties(t *testing.T) {
	all := map[string]*Schedule{}
	for _, zone := range zones {
		for _, unit := range []string{"hour", "day", "month", "quarter", "year"} {
			all[zone+" "+unit] = schedule(t, zone, "time_unit="+unit, "num_precreate=2", "num_retention=3")
		}
	}
	atLeast := map[schema.TimeUnit]time.Duration{schema.UnitHour: time.Hour, schema.UnitDay: 24 * time.Hour, schema.UnitMonth: 28 * 24 * time.Hour, schema.UnitQuarter: 90 * 24 * time.Hour, schema.UnitYear: 365 * 24 * time.Hour}
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		width := rapid.SampledFrom([]string{"hour", "day", "month", "quarter", "year"}).Draw(t, "unit")
		s := all[zone+" "+width]
		now := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "now"), 0)
		if _, end := now.In(s.loc).ZoneBounds(); !end.IsZero() && rapid.Bool().Draw(t, "near a change") {
			now = end.Add(time.Duration(rapid.Int64Range(-7200, 7200).Draw(t, "s")) * time.Second)
		}
		name := s.Name(now)
		u, err := s.parse(name)
		if err != nil || u != s.unit(now) {
			t.Fatalf("%q reads as %d, %v, want %d", name, u, err, s.unit(now))
		}
		if s.name(u) >= s.name(u+1) {
			t.Fatalf("%q does not sort before %q", s.name(u), s.name(u+1))
		}
		created := s.Precreate(now)
		later := now.Add(time.Duration(rapid.Int64Range(0, int64(atLeast[s.auto.Unit])).Draw(t, "later")))
		if s.unit(later) >= u && !slices.ContainsFunc(created, func(v []string) bool { return v[0] == s.Name(later) }) {
			t.Fatalf("at %s %v exist, %s is needed at %s", now, created, s.Name(later), later)
		}
		if err := s.CheckWrite([]string{s.Name(later)}, later); err != nil {
			t.Fatalf("a write of now is refused: %v", err)
		}
		old := []string{s.name(u - unit(rapid.IntRange(0, 6).Draw(t, "age")))}
		before, err1 := s.Expired(old, now)
		after, err2 := s.Expired(old, later)
		if err1 != nil || err2 != nil || before && !after {
			t.Fatalf("%v expired at %s, not at %s (%v %v)", old, now, later, err1, err2)
		}
		for _, v := range created {
			if expired, err := s.Expired(v, now); err != nil || expired {
				t.Fatalf("%v is made and dropped at once: %v", v, err)
			}
		}
	})
}

// Every local hour of the days around a change has exactly the partitions that
// its instants name: none is missing, none stays empty.
func TestHoursAroundClockChanges(t *testing.T) {
	for _, c := range []struct {
		zone, from string
		hours      int // distinct local hours in 24 h from there
	}{
		{"Europe/Berlin", "2024-03-30T23:00:00Z", 24}, // 23 of the day, then 00 of the next
		{"Europe/Berlin", "2024-10-26T22:00:00Z", 23}, // one is repeated
		{"Australia/Lord_Howe", "2024-10-05T13:30:00Z", 25},
		{"America/St_Johns", "2024-03-10T03:30:00Z", 24},
	} {
		s := schedule(t, c.zone, "time_unit=hour", "num_precreate=40")
		start := instant(t, c.from)
		seen := map[string]bool{}
		var order []string
		for minute := range 24 * 60 {
			if name := s.Name(start.Add(time.Duration(minute) * time.Minute)); !seen[name] {
				seen[name] = true
				order = append(order, name)
			}
		}
		created := s.Precreate(start)
		var names []string
		for _, v := range created[:len(order)] {
			names = append(names, v[0])
		}
		if fmt.Sprint(names) != fmt.Sprint(order) {
			t.Errorf("%s: made %v, used %v", c.zone, names, order)
		}
		if len(order) != c.hours {
			t.Errorf("%s: %d hours, want %d: %v", c.zone, len(order), c.hours, order)
		}
	}
}

// St. John's set its clocks back at 00:01, from one day into the day before: what
// was dropped a minute earlier must not become writable again.
func TestExpiredStaysExpiredWhenClocksGoBack(t *testing.T) {
	for unit, old := range map[string]string{"hour": "2010-11-06-22", "day": "2010-11-05"} {
		s := schedule(t, "America/St_Johns", "time_unit="+unit, "num_retention=1")
		for _, at := range []string{"2010-11-07T02:30:30Z", "2010-11-07T02:31:30Z", "2010-11-07T03:30:00Z"} {
			if expired, err := s.Expired([]string{old}, instant(t, at)); err != nil || !expired {
				t.Errorf("%s at %s (%s): expired %v, %v", old, at, s.Name(instant(t, at)), expired, err)
			}
		}
	}
}
