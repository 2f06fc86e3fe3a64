package partition

import (
	"fmt"
	"slices"
	"time"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// Schedule is the calendar of a table with automatic partitions: which exist
// ahead of now, which are too old. It never looks at a clock: every method takes
// the instant. Immutable: safe for concurrent use.
//
// A unit is a stretch of local time in the table's zone, named by its local
// begin. The names sort as the times do:
//
//	hour 2024-03-31-07   day 2024-03-31   month 2024-03   quarter 2024-Q1   year 2024
//
// Daylight saving: an hour that the clocks skip has no partition; an hour that
// they repeat is one partition of two hours. Days, months and longer units are
// calendar units whatever their length.
type Schedule struct {
	auto    schema.AutoPartition
	loc     *time.Location
	key, of int // position of the time's key among the partition keys; their count
}

// unit counts a TimeUnit's units of local time; only differences mean anything.
type unit int64

// NewSchedule makes the calendar of a valid descriptor; loc is the zone that
// options' AutoPartition.Zone names, looked up by the caller. A table without
// automatic partitions is mink.ErrInvalid.
func NewSchedule(d *schema.Descriptor, loc *time.Location) (*Schedule, error) {
	o, err := d.ParsedOptions()
	if err != nil {
		return nil, err
	}
	a := o.AutoPartition
	at := slices.Index(d.PartitionKeys, a.Key)
	if a.Unit == "" || at < 0 {
		return nil, fmt.Errorf("%w table %s: it has no automatic partitions", mink.ErrInvalid, d.Name())
	}
	return &Schedule{auto: a, loc: loc, key: at, of: len(d.PartitionKeys)}, nil
}

// ScheduleOf is the calendar of a valid descriptor in the zone that its options
// name; nil for a table without automatic partitions. A zone that this machine
// does not know is mink.ErrInvalid.
func ScheduleOf(d *schema.Descriptor) (*Schedule, error) {
	o, err := d.ParsedOptions()
	if err != nil || o.AutoPartition.Unit == "" {
		return nil, err
	}
	loc, err := time.LoadLocation(o.AutoPartition.Zone)
	if err != nil {
		return nil, fmt.Errorf("table %s: auto_partition.time_zone %q: %w: %w", d.Name(), o.AutoPartition.Zone, mink.ErrInvalid, err)
	}
	return NewSchedule(d, loc)
}

// Name is the name of the unit that an instant is in.
func (s *Schedule) Name(at time.Time) string { return s.name(s.unit(at)) }

// Precreate lists the values of the partitions that should exist at an instant:
// the current unit and num_precreate after it, oldest first. With several
// partition keys it is empty: the other values are not known ahead.
func (s *Schedule) Precreate(now time.Time) [][]string {
	if s.of > 1 {
		return nil
	}
	var values [][]string
	for u := s.unit(now); len(values) <= s.auto.Precreate; u++ {
		if s.exists(u) {
			values = append(values, []string{s.name(u)})
		}
	}
	return values
}

// Expired reports whether the partition with these values is older than the
// num_retention units before the current one: it is to be dropped, and writes to
// it are refused. Never true again false as time goes on, even when clocks are
// set back. Values that are not a unit's name are an error.
func (s *Schedule) Expired(values []string, now time.Time) (bool, error) {
	if len(values) != s.of {
		return false, fmt.Errorf("%w partition: %d values, want %d", mink.ErrInvalid, len(values), s.of)
	}
	u, err := s.parse(values[s.key])
	if err != nil {
		return false, err
	}
	if s.auto.Retention == 0 {
		return false, nil
	}
	return u < s.latest(now)-unit(s.auto.Retention), nil
}

// CheckWrite refuses a row whose partition is past retention or whose time is not
// a unit's name.
func (s *Schedule) CheckWrite(values []string, now time.Time) error {
	expired, err := s.Expired(values, now)
	if err == nil && expired {
		oldest := s.name(s.latest(now) - unit(s.auto.Retention))
		err = fmt.Errorf("%w: partition %q is past retention, the oldest that is kept is %q (auto_partition.num_retention = %d)",
			mink.ErrInvalid, values[s.key], oldest, s.auto.Retention)
	}
	return err
}

// Drop picks the expired among the partitions that exist, oldest first. Values
// that are not a unit's name (made by hand) are left alone.
func (s *Schedule) Drop(existing [][]string, now time.Time) [][]string {
	var drop [][]string
	for _, values := range existing {
		if expired, err := s.Expired(values, now); err == nil && expired {
			drop = append(drop, values)
		}
	}
	slices.SortFunc(drop, func(a, b []string) int {
		ua, _ := s.parse(a[s.key])
		ub, _ := s.parse(b[s.key])
		if ua != ub {
			return int(max(-1, min(1, ua-ub)))
		}
		return slices.Compare(a, b)
	})
	return drop
}

// unit is the local unit of an instant.
func (s *Schedule) unit(at time.Time) unit {
	local := at.In(s.loc)
	year, month, day := local.Date()
	switch s.auto.Unit {
	case schema.UnitHour:
		return unit(daysOf(int64(year), int(month), day)*24 + int64(local.Hour()))
	case schema.UnitDay:
		return unit(daysOf(int64(year), int(month), day))
	case schema.UnitMonth:
		return unit(year*12 + int(month) - 1)
	case schema.UnitQuarter:
		return unit(year*4 + (int(month)-1)/3)
	}
	return unit(year)
}

// latest is the largest unit that was current at now or before: clocks that are
// set back do not move it back.
func (s *Schedule) latest(now time.Time) unit {
	u := s.unit(now)
	if start, _ := now.In(s.loc).ZoneBounds(); !start.IsZero() {
		u = max(u, s.unit(start.Add(-1)))
	}
	return u
}

func (s *Schedule) name(u unit) string {
	n := int64(u)
	switch s.auto.Unit {
	case schema.UnitHour:
		return fmt.Sprintf("%s-%02d", formatDate(floorDiv(n, 24)), n-floorDiv(n, 24)*24)
	case schema.UnitDay:
		return formatDate(n)
	case schema.UnitMonth:
		return fmt.Sprintf("%04d-%02d", floorDiv(n, 12), n-floorDiv(n, 12)*12+1)
	case schema.UnitQuarter:
		return fmt.Sprintf("%04d-Q%d", floorDiv(n, 4), n-floorDiv(n, 4)*4+1)
	}
	return fmt.Sprintf("%04d", n)
}

// parse is the inverse of name, for years 0000 to 9999.
func (s *Schedule) parse(text string) (unit, error) {
	fail := func() (unit, error) {
		return 0, fmt.Errorf("%w partition value %.50q: automatic partitions by %s have names such as %q",
			mink.ErrInvalid, text, s.auto.Unit, s.Name(time.Date(2024, 3, 31, 7, 0, 0, 0, s.loc)))
	}
	layout := map[schema.TimeUnit]string{
		schema.UnitHour: "2006-01-02-15", schema.UnitDay: dateLayout, schema.UnitMonth: "2006-01", schema.UnitYear: "2006",
	}[s.auto.Unit]
	if s.auto.Unit == schema.UnitQuarter {
		if len(text) != len("2024-Q1") || text[4:6] != "-Q" || text[6] < '1' || text[6] > '4' {
			return fail()
		}
		t, err := time.Parse("2006", text[:4])
		if err != nil {
			return fail()
		}
		return unit(t.Year()*4 + int(text[6]-'1')), nil
	}
	t, err := time.Parse(layout, text)
	if err != nil {
		return fail()
	}
	utc := Schedule{auto: s.auto, loc: time.UTC}
	u := utc.unit(t)
	if s.name(u) != text {
		return fail()
	}
	return u, nil
}

// exists is false for an hour that the clocks skip.
func (s *Schedule) exists(u unit) bool {
	if s.auto.Unit != schema.UnitHour {
		return true
	}
	days := floorDiv(int64(u), 24)
	year, month, day := civil(days)
	hour := int(int64(u) - days*24)
	for minute := range 60 { // zones shift by half and quarter hours too
		if s.unit(time.Date(int(year), time.Month(month), day, hour, minute, 0, 0, s.loc)) == u {
			return true
		}
	}
	return false
}
