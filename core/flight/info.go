package flight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// ListFlights lists tables, of the database that the criteria name, else of all.
// Endpoints come with GetFlightInfo.
func (s *service) ListFlights(c *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	view := s.backend.View()
	only := string(c.GetExpression())
	if _, ok := view.Database(only); only != "" && !ok {
		return fmt.Errorf("list flights: the criteria are a database's name: database %.200q %w", only, mink.ErrNotExist)
	}
	for d := range view.Databases() {
		if only != "" && d.Name != only {
			continue
		}
		for t := range view.Tables(d.Name) {
			info := s.infoOf(t, wire.SchemaResult(current(t).Arrow()))
			if !hasKey(t) { // of the others the count is an action: it opens stores
				info.TotalRecords, info.TotalBytes = s.estimate(view, t)
			}
			if err := stream.Send(info); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *service) infoOf(t *cluster.Table, schema []byte) *flight.FlightInfo {
	return &flight.FlightInfo{
		Schema:           schema,
		FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{t.Descriptor.Database, t.Descriptor.Table}},
		TotalRecords:     -1, TotalBytes: -1,
	}
}

// estimate sums a table's rows and bytes; -1: a bucket is led elsewhere.
func (s *service) estimate(view *cluster.State, t *cluster.Table) (rows, bytes int64) {
	for p := range view.Partitions(t.ID) {
		for i := range p.Streams {
			log, err := s.backend.Log(mink.BucketRef{Table: t.ID, Partition: p.ID, Index: int32(i)})
			if err != nil {
				return -1, -1
			}
			from, hw := log.LogStart(), log.HighWatermark()
			rows += int64(hw - from)
			bytes += share(log, from, hw)
		}
	}
	return rows, bytes
}

// share estimates the bytes of an offset range by its part of the whole log.
func share(log Log, from, until mink.Offset) int64 {
	if until <= from {
		return 0
	}
	all, hw := log.Stats().LogBytes, log.HighWatermark()
	return int64(float64(all) * float64(until-from) / float64(max(hw, 1)))
}

// GetSchema answers the schema of a table, or of its columns that a command names.
func (s *service) GetSchema(_ context.Context, d *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	c, t, err := s.readCommand(d)
	if err != nil {
		return nil, err
	}
	as, err := commandSchema(&c, t)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: wire.SchemaResult(as)}, nil
}

// commandSchema is what the rows of a read have.
func commandSchema(c *api.Command, t *cluster.Table) (*arrow.Schema, error) {
	if c.Mode == api.ModeLog {
		_, as, err := logSchema(t, c.Columns, c.Meta)
		return as, err
	}
	sel, err := newSelection(t, c.Columns, c.Filter)
	if err != nil {
		return nil, err
	}
	return sel.out.Arrow(), nil
}

var modes = []string{api.ModeLog, api.ModeSnapshot, api.ModeUnion, api.ModeLake}

// readCommand reads a descriptor of a read, and fills in its mode: the log of a log
// table, the rows of a table with a primary key.
func (s *service) readCommand(d *flight.FlightDescriptor) (api.Command, *cluster.Table, error) {
	c, t, err := command(s.backend.View(), d)
	if err != nil {
		return c, nil, err
	}
	if c.Mode == "" && t != nil {
		c.Mode = api.ModeLog
		if hasKey(t) {
			c.Mode = api.ModeSnapshot
		}
	}
	switch {
	case c.Append != nil || c.Put != nil:
		err = fmt.Errorf("%w: command descriptor: append and put belong to DoPut", mink.ErrInvalid)
	case c.Delete:
		err = fmt.Errorf("%w: command descriptor: delete belongs to DoPut", mink.ErrInvalid)
	case c.Mode == api.ModeLog && c.Filter != "":
		err = fmt.Errorf("command descriptor: filter in mode log: %w; modes snapshot, union and lake take one", mink.ErrUnsupported)
	case !slices.Contains(modes, c.Mode):
		err = fmt.Errorf("%w: command descriptor: mode %.40q, want one of %s", mink.ErrInvalid, c.Mode, strings.Join(modes, ", "))
	case c.Mode != api.ModeLog && (c.From != "" || c.Meta):
		err = fmt.Errorf(`%w: command descriptor: from and meta belong to a read of the log: add "mode":"log"`, mink.ErrInvalid)
	case c.Mode == api.ModeSnapshot && !hasKey(t):
		err = fmt.Errorf("command descriptor: mode snapshot: %w", wantKey(t))
	}
	return c, t, err
}

// GetFlightInfo answers where a table's rows are: an endpoint per bucket, with a
// ticket that reads up to the high watermark of now however often it is used, or the
// rows as of when it is used.
func (s *service) GetFlightInfo(ctx context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	if err := s.mayName(); err != nil {
		return nil, err
	}
	c, t, err := s.readCommand(d)
	if err != nil {
		return nil, err
	}
	from, err := api.ParsePosition(c.From)
	if err != nil {
		return nil, fmt.Errorf("command descriptor: from: %w", err)
	}
	view := s.backend.View()
	as, err := commandSchema(&c, t)
	if err != nil {
		return nil, err
	}
	if c.Mode == api.ModeUnion || c.Mode == api.ModeLake {
		info := s.infoOf(t, wire.SchemaResult(as))
		info.FlightDescriptor = d
		if info.Endpoint, err = s.lakeEndpoints(ctx, view, t, &c); err != nil {
			return nil, fmt.Errorf("flight info of table %s: %w", t.Descriptor.Name(), err)
		}
		return info, nil
	}
	refs, of, err := bucketsOf(view, t, c.Partition, nil)
	if err != nil {
		return nil, err
	}
	info := s.infoOf(t, wire.SchemaResult(as))
	info.FlightDescriptor = d
	var scans []*api.Scan
	if c.Mode == api.ModeLog {
		info.TotalRecords, info.TotalBytes = 0, 0
		if scans, err = s.scansOf(ctx, view, t, info, refs, &c, from); err != nil {
			return nil, fmt.Errorf("flight info of table %s: %w", t.Descriptor.Name(), err)
		}
	}
	for i, b := range refs {
		ticket, at := api.Ticket{Snapshot: &api.Snapshot{Bucket: b, Columns: c.Columns, Filter: c.Filter}}, mink.Offset(-1)
		if scans != nil {
			ticket, at = api.Ticket{Scan: scans[i]}, scans[i].From
		}
		info.Endpoint = append(info.Endpoint, &flight.FlightEndpoint{
			Ticket:      &flight.Ticket{Ticket: api.JSON(ticket)},
			Location:    location(leaderOf(view, b)),
			AppMetadata: api.JSON(api.BucketOffset{Bucket: b, Offset: at, Values: of[i].Values}),
		})
	}
	return info, nil
}

// scansOf makes a scan of each bucket and adds up their estimates. The leaders of
// those that are led elsewhere are asked where they end; what they cannot say just
// now is left open, or taken from the metadata.
func (s *service) scansOf(ctx context.Context, view *cluster.State, t *cluster.Table, info *flight.FlightInfo, refs []mink.BucketRef, c *api.Command, from api.Position) ([]*api.Scan, error) {
	scans := make([]*api.Scan, len(refs))
	var far []mink.BucketRef
	var at []int
	for i, b := range refs {
		scans[i] = &api.Scan{Bucket: b, Columns: c.Columns, Meta: c.Meta}
		log, err := s.backend.Log(b)
		if err != nil {
			far, at = append(far, b), append(at, i)
			continue
		}
		begin, err := s.resolve(ctx, b, log, from)
		hw := log.HighWatermark()
		if err == nil {
			err = s.vouch(b, log)
		}
		if err != nil && passing(err) {
			far, at = append(far, b), append(at, i)
			continue
		}
		if err != nil {
			return nil, err
		}
		if info.TotalBytes >= 0 {
			info.TotalBytes += share(log, begin, hw)
		}
		bound(scans[i], info, begin, hw)
	}
	if len(far) == 0 {
		return scans, nil
	}
	info.TotalBytes = -1
	begins, beginErrs := s.offsets(ctx, t, far, c.From, from)
	ends, endErrs := s.offsets(ctx, t, far, "latest", api.Position{Kind: api.AtLatest})
	for k, i := range at {
		if beginErrs[k] == nil && endErrs[k] == nil {
			bound(scans[i], info, begins[k], ends[k])
			continue
		}
		id, _ := view.StreamOf(far[k])
		st, ok := view.Stream(id)
		switch {
		case !ok:
			return nil, fmt.Errorf("bucket %s: %w", far[k], mink.ErrNotExist)
		case from.Kind == api.AtEarliest:
			scans[i].From = st.Start
		case from.Kind == api.AtOffset:
			scans[i].From = mink.Offset(from.Value)
		default:
			return nil, firstOf(beginErrs[k], endErrs[k]) // only the leader knows
		}
		info.TotalRecords = -1
	}
	return scans, nil
}

// bound fills in where a scan begins and ends.
func bound(scan *api.Scan, info *flight.FlightInfo, from, hw mink.Offset) {
	scan.From, scan.Until = min(from, hw), &hw
	if info.TotalRecords >= 0 {
		info.TotalRecords += int64(hw - scan.From)
	}
}

// resolve finds a position in a log; what lies past the end is the high watermark.
func (s *service) resolve(ctx context.Context, ref mink.BucketRef, log Log, at api.Position) (mink.Offset, error) {
	switch at.Kind {
	case api.AtEarliest:
		return log.LogStart(), nil
	case api.AtLatest:
		end := log.HighWatermark()
		return end, s.vouch(ref, log)
	case api.AtOffset:
		return mink.Offset(at.Value), nil
	}
	found, ok, err := log.OffsetForTimestamp(ctx, at.Value, tablet.ByCommit)
	if err != nil {
		return 0, err
	}
	if !ok {
		end := log.HighWatermark()
		return end, s.vouch(ref, log)
	}
	return found.Offset, nil
}

// vouch is asked once it was read off a log where it ends, which only the bucket's
// leader can know: who leads it now may have more. mink.ErrUnavailable or
// *mink.NotLeaderError when this node may have ceased to be it before.
func (s *service) vouch(ref mink.BucketRef, log Log) error {
	now, err := s.backend.Log(ref)
	if err == nil && now.LeaderEpoch() != log.LeaderEpoch() {
		err = fmt.Errorf("bucket %s: its leadership changed: %w", ref, mink.ErrUnavailable)
	}
	if err == nil {
		_, err = s.backend.Lease()
	}
	if err != nil {
		return fmt.Errorf("where bucket %s ends: %w", ref, err)
	}
	return nil
}

// leaderOf is a bucket and who leads it, as the view knows it.
func leaderOf(view *cluster.State, b mink.BucketRef) api.Bucket {
	out := api.Bucket{Bucket: b}
	id, ok := view.StreamOf(b)
	if !ok {
		return out
	}
	st, ok := view.Stream(id)
	if !ok {
		return out
	}
	out.Leader, out.LeaderEpoch = st.Owner.Node, st.Owner.LeaderEpoch
	if n, ok := view.Node(st.Owner.Node); ok {
		out.Address = n.FlightAddress
	}
	return out
}

// location is the leader's, for clients that follow locations; none when it is
// not known: then the same service is asked.
func location(b api.Bucket) []*flight.Location {
	if b.Address == "" {
		return nil
	}
	uri := b.Address
	if !strings.Contains(uri, "://") {
		uri = "grpc://" + uri
	}
	return []*flight.Location{{Uri: uri}}
}
