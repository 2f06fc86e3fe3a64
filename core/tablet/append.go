package tablet

import (
	"errors"
	"fmt"
	"sort"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// AppendResult is where an append landed. A duplicate that is older than the
// window remembers answers First = Last = -1: stored once, offset unknown.
type AppendResult struct {
	First, Last     mink.Offset
	CommitTimestamp int64 // ms; -1 when First is
	LogAppendTime   bool  // the records' timestamp is CommitTimestamp
	Duplicate       bool
	LogStart        mink.Offset
}

// Pending is an append on its way to the store. Several may be open at once.
type Pending struct {
	log    *Log
	ticket Ticket // nil: durable already
	res    AppendResult
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done is closed once the outcome is known.
func (p *Pending) Done() <-chan struct{} {
	if p.ticket == nil {
		return closed
	}
	return p.ticket.Done()
}

// Placed is where the append will be, known at once; LogStart is not in it.
func (p *Pending) Placed() AppendResult { return p.res }

// Result is valid after Done; a nil error means durable and visible. An error
// says that the outcome is not known here: the log closes and its next leader
// decides; an idempotent writer sends the same batch again.
func (p *Pending) Result() (AppendResult, error) {
	res := p.res
	res.LogStart = p.log.s.Start()
	if p.ticket != nil {
		if err := p.ticket.Err(); err != nil {
			return res, fmt.Errorf("append to bucket %s at %d: %w", p.log.cfg.Bucket, p.res.First, err)
		}
	}
	return res, nil
}

// KafkaAppend is what a Produce request says about its batch.
type KafkaAppend struct {
	AllowZstd bool // Produce >= 7
}

// ArrowAppend is one Arrow batch. Metadata and Body are the two halves of one
// IPC record-batch message and are not kept. Count 0 with empty halves only
// advances the writer.
type ArrowAppend struct {
	SchemaID    mink.SchemaID
	Metadata    []byte
	Body        []byte
	Count       int32  // rows, must be the message's
	Changes     []byte // nil: every row is an append, which is all a log table takes
	WriterID    mink.WriterID
	WriterEpoch int16
	Sequence    int32 // of this batch; counts batches from 0
}

// AppendKafka appends one produced v2 batch. The batch is patched in place, also
// when it is refused, and not kept: do not append the same bytes again.
//
// Errors: *record.BatchError, *OutOfOrderError, *WriterFencedError,
// mink.ErrUnsupported (not a topic's table), mink.ErrThrottled, mink.ErrFenced,
// mink.ErrClosed. An error means that nothing was appended.
func (l *Log) AppendKafka(batch []byte, a KafkaAppend) (*Pending, error) {
	set := l.settings.Load()
	lay := set.layouts[len(set.layouts)-1]
	if l.cfg.PrimaryKey || !set.isTopic(lay) {
		return nil, fmt.Errorf("append to bucket %s: %w: Kafka batches need the four columns of a topic, or kafka.value.format = json", l.cfg.Bucket, mink.ErrUnsupported)
	}
	o := &set.options
	opts := kafkabatch.Options{
		MaxBytes:      o.MaxMessageBytes,
		Deep:          o.DeepKafka,
		RequireKeys:   o.Compact,
		AllowZstd:     a.AllowZstd,
		NowMs:         l.now(),
		BeforeMaxMs:   int64(o.TimestampBefore / time.Millisecond),
		AfterMaxMs:    int64(o.TimestampAfter / time.Millisecond),
		LogAppendTime: o.TimestampType == schema.LogAppendTime,
	}
	var bad badRecords
	rowBytes := int64(0)
	if !lay.topic {
		r := lay.json.reader()
		defer lay.json.readers.Put(r)
		opts.Value = func(delta int32, value []byte) error {
			err := checkValue(r, value, &bad)
			if rowBytes += lay.json.mapper.RowBytes(); value != nil {
				rowBytes += r.NestedBytes() // of a bad one too: its reader finds out at its end
			}
			if err == nil || !o.QuarantineBad {
				return err
			}
			bad.add(delta, err)
			return nil
		}
	}
	var h record.Header
	var err error
	if opts.Deep || opts.RequireKeys || opts.Value != nil {
		err = l.codecs.withKafka(func(d *kafkabatch.Decoder) error {
			h, err = kafkabatch.Header(batch, &opts, d)
			return err
		})
	} else {
		h, err = kafkabatch.Header(batch, &opts, nil)
	}
	if err == nil && rowBytes > rowBytesMax {
		err = record.Errorf(record.KindTooLarge, "its %d records take %d MiB as rows of the table, at most %d are allowed: send fewer at a time", h.Count, rowBytes>>20, rowBytesMax>>20)
	}
	if err != nil {
		l.counts.refused.Add(1)
		return nil, fmt.Errorf("append to bucket %s: %w", l.cfg.Bucket, err)
	}
	h.SchemaID = set.current()
	p, err := l.submit(&entry{header: h, kafka: batch, logAppendTime: opts.LogAppendTime})
	if err == nil && !p.res.Duplicate {
		l.noteBad(bad.at(p.res.First))
	}
	return p, err
}

// AppendArrow appends one Arrow batch, which is checked in full. Errors as for
// AppendKafka; mink.ErrUnavailable for a schema version that this node has not
// applied yet; mink.ErrUnsupported for a primary-key table.
func (l *Log) AppendArrow(a ArrowAppend) (*Pending, error) {
	if l.cfg.PrimaryKey {
		return nil, fmt.Errorf("append to bucket %s: %w: the table has a primary key, and only its puts write the changelog", l.cfg.Bucket, mink.ErrUnsupported)
	}
	e, err := l.checkArrow(&a)
	if err != nil {
		l.counts.refused.Add(1)
		return nil, fmt.Errorf("append to bucket %s: %w", l.cfg.Bucket, err)
	}
	return l.submit(&e)
}

func (l *Log) now() int64 { return l.cfg.Now().UnixMilli() }

func (l *Log) checkArrow(a *ArrowAppend) (entry, error) {
	set := l.settings.Load()
	lay, ok := set.layout(a.SchemaID)
	switch {
	case a.SchemaID < 1:
		return entry{}, fmt.Errorf("%w: schema id %d", mink.ErrInvalid, a.SchemaID)
	case !ok:
		return entry{}, fmt.Errorf("schema %d is not known here yet: %w", a.SchemaID, mink.ErrUnavailable)
	case a.WriterID < mink.NoWriter || a.WriterID >= 0 && (a.WriterEpoch < 0 || a.Sequence < 0):
		return entry{}, fmt.Errorf("%w: writer %d with epoch %d and sequence %d", mink.ErrInvalid, a.WriterID, a.WriterEpoch, a.Sequence)
	case a.Count < 0 || a.Count == 0 && a.WriterID < 0:
		return entry{}, fmt.Errorf("%w: %d rows and no writer", mink.ErrInvalid, a.Count)
	case len(a.Changes) != 0 && len(a.Changes) != int(a.Count):
		return entry{}, fmt.Errorf("%w: %d changes for %d rows", mink.ErrInvalid, len(a.Changes), a.Count)
	}
	for i, c := range a.Changes {
		if c != byte(record.ChangeAppend) {
			return entry{}, record.RecordErrorf(record.KindUnsupported, i, "%s in a log table: it takes appends only", record.Change(c))
		}
	}
	h := record.Header{
		Encoding: record.EncodingArrow, Attributes: record.AttrAppendOnly, SchemaID: a.SchemaID, Count: a.Count,
		WriterID: mink.NoWriter, WriterEpoch: -1, Sequence: record.NoSequence, LastSequence: record.NoSequence,
	}
	if a.WriterID >= 0 {
		h.WriterID, h.WriterEpoch, h.Sequence, h.LastSequence = a.WriterID, a.WriterEpoch, a.Sequence, a.Sequence
	}
	if a.Count == 0 {
		h.Attributes |= record.AttrWriterStateOnly
		h.MaxTimestamp = -1 // no record: never what a search by record time stops at
		return entry{header: h}, nil
	}
	h.LastOffsetDelta, h.MetadataLen = a.Count-1, uint32(len(a.Metadata))
	e := entry{header: h, metadata: a.Metadata, body: a.Body}
	o := &set.options
	e.logAppendTime = set.isTopic(lay) && o.TimestampType == schema.LogAppendTime
	if n := e.size(); o.MaxMessageBytes > 0 && n > o.MaxMessageBytes {
		return entry{}, record.Errorf(record.KindTooLarge, "%d bytes, the limit is %d (max.message.bytes)", n, o.MaxMessageBytes)
	}
	checker := l.codecs.checker()
	info, err := checker.Check(lay.Layout, a.Metadata, a.Body)
	l.codecs.check.Put(checker)
	if err != nil {
		return entry{}, err
	}
	if info.Rows != int64(a.Count) {
		return entry{}, record.Errorf(record.KindInvalidRecord, "%d rows in a message that was announced with %d", info.Rows, a.Count)
	}
	if o.KafkaJSON && !lay.topic {
		if err := l.checkJSON(lay, a); err != nil {
			return entry{}, err
		}
	}
	if o.Compact {
		if err := l.checkKeys(lay, a); err != nil {
			return entry{}, err
		}
	}
	// Rows without a time of their own get the commit time when Kafka reads them.
	e.commitTime = !info.HasTimestamp || info.NullTimes
	e.header.MaxTimestamp = info.MaxTimestamp
	if after := int64(o.TimestampAfter / time.Millisecond); lay.topic && !e.logAppendTime && after > 0 && info.HasTimestamp && info.MaxTimestamp > l.now()+after {
		return entry{}, record.Errorf(record.KindTimestamp, "timestamp %d is further ahead than the table allows", info.MaxTimestamp)
	}
	e.sum = record.BodySum(e.metadata, record.Padding(len(e.metadata)), e.body)
	return e, nil
}

// checkKeys makes sure that every row of a compacted topic has a key.
func (l *Log) checkKeys(lay *layout, a *ArrowAppend) error {
	if !lay.topic {
		return record.Errorf(record.KindInvalidRecord, "schema %d has not the columns of a topic, and a compacted topic needs a key in every record: take the table's schema of now", a.SchemaID)
	}
	return l.codecs.withArrow(func(d *arrowipc.Decoder) error {
		rows, err := d.Decode(lay.Layout, a.Metadata, a.Body, []int{kafkabatch.ColKey})
		if err != nil {
			return err
		}
		defer rows.Release()
		keys := rows.Column(0)
		for i := range keys.Len() {
			if keys.IsNull(i) {
				return record.RecordErrorf(record.KindInvalidRecord, i, "a compacted topic needs a key in every record")
			}
		}
		return nil
	})
}

// entry is one checked batch.
type entry struct {
	header         record.Header
	kafka          []byte // or
	metadata, body []byte
	changes        []byte // of a changelog; nil: all are appends
	sum            uint32 // of the arrow payload
	logAppendTime  bool   // records take the commit timestamp
	commitTime     bool   // the max timestamp is at least the commit timestamp
}

func (e *entry) size() int {
	return record.HeaderSize + len(e.kafka) + len(e.changes) + len(record.Padding(len(e.changes))) + len(e.metadata) + len(record.Padding(len(e.metadata))) + len(e.body)
}

// submit gives the batch its place: under one lock, so that windows, offsets and
// the stream's order are one order. Nothing changes unless the stream took it.
func (l *Log) submit(e *entry) (*Pending, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &e.header
	v, err := l.judge(h)
	if err != nil {
		return nil, err
	}
	if v.duplicate {
		l.counts.duplicates.Add(1)
		return l.repeat(&v, e.logAppendTime), nil
	}
	return l.place(e)
}

// judge says whether a batch may be appended now or was before, and gives it its
// time. Under mu.
func (l *Log) judge(h *record.Header) (v verdict, err error) {
	if l.closed.Load() {
		return verdict{}, fmt.Errorf("append to bucket %s: %w", l.cfg.Bucket, mink.ErrClosed)
	}
	st := l.mu.st
	h.CommitTimestamp = max(l.now(), st.lastCommit)
	if h.WriterID >= 0 {
		if v, err = st.writers.check(h, h.CommitTimestamp); err != nil {
			return verdict{}, l.refuse(err)
		}
	}
	if !v.duplicate && l.settings.Load().closed {
		return verdict{}, fmt.Errorf("append to bucket %s: %w: its partition is closed and takes no more rows", l.cfg.Bucket, mink.ErrInvalid)
	}
	return v, nil
}

// place appends a batch that was judged. Under mu.
func (l *Log) place(e *entry) (*Pending, error) {
	st, h := l.mu.st, &e.header
	h.BaseOffset, h.LeaderEpoch = st.end, l.cfg.LeaderEpoch
	size := l.seal(e)
	ticket, err := l.s.Append(stream.AppendRequest{
		Start:           h.BaseOffset,
		Span:            uint64(h.LastOffsetDelta) + 1,
		Count:           uint32(h.Count),
		MaxTimestamp:    h.MaxTimestamp,
		CommitTimestamp: h.CommitTimestamp,
		Parts:           l.parts(e),
	})
	clear(l.mu.parts[:])
	if err != nil {
		return nil, fmt.Errorf("append to bucket %s: %w", l.cfg.Bucket, err)
	}
	st.apply(h, size)
	l.landed()
	l.mu.flights = append(l.mu.flights, flight{st.end, ticket})
	l.counts.batches.Add(1)
	l.counts.records.Add(int64(h.Count))
	l.counts.bytes.Add(int64(size))
	return &Pending{log: l, ticket: ticket, res: AppendResult{
		First: h.BaseOffset, Last: h.LastOffset(), CommitTimestamp: h.CommitTimestamp, LogAppendTime: e.logAppendTime,
	}}, nil
}

// seal writes the header of e, with its times, and answers the batch's size.
func (l *Log) seal(e *entry) int {
	h := &e.header
	if e.logAppendTime {
		h.Attributes |= record.AttrLogAppendTime
		h.MaxTimestamp = h.CommitTimestamp
		if e.kafka != nil {
			kafkabatch.SetLogAppendTime(e.kafka, h.CommitTimestamp)
		}
	} else if e.commitTime {
		h.MaxTimestamp = max(h.MaxTimestamp, h.CommitTimestamp)
	}
	size, sum := e.size(), e.sum
	if e.kafka != nil {
		sum = record.KafkaBodySum(e.kafka)
	}
	record.PutHeader(l.mu.hdr[:], h, size-record.HeaderSize)
	record.Seal(l.mu.hdr[:], sum)
	record.SetServerFields(l.mu.hdr[:], e.kafka, h.BaseOffset, h.CommitTimestamp, h.LeaderEpoch)
	return size
}

// parts lists the frame's bytes in scratch that Append does not keep.
func (l *Log) parts(e *entry) [][]byte {
	p := append(l.mu.parts[:0], l.mu.hdr[:])
	if e.kafka != nil {
		return append(p, e.kafka)
	}
	if e.changes != nil {
		p = append(p, e.changes, record.Padding(len(e.changes)))
	}
	return append(p, e.metadata, record.Padding(len(e.metadata)), e.body)
}

func (l *Log) refuse(err error) error {
	var order *OutOfOrderError
	var fenced *WriterFencedError
	switch {
	case errors.As(err, &order):
		order.Bucket = l.cfg.Bucket
		l.counts.outOfOrder.Add(1)
	case errors.As(err, &fenced):
		fenced.Bucket = l.cfg.Bucket
		l.counts.fenced.Add(1)
	}
	return err
}

// landed forgets the flights that are durable.
func (l *Log) landed() {
	hw := l.s.HighWatermark()
	l.mu.st.settle(l.visible.of(hw))
	n := 0
	for n < len(l.mu.flights) && l.mu.flights[n].end <= hw {
		n++
	}
	if n > 0 {
		rest := copy(l.mu.flights, l.mu.flights[n:])
		clear(l.mu.flights[rest:])
		l.mu.flights = l.mu.flights[:rest]
	}
}

// repeat answers a duplicate: at once when the first one is durable, else with
// its ticket. Of a batch older than the window only the window's oldest is
// known, which came after it: when that is durable, so is the older one.
func (l *Log) repeat(v *verdict, logAppendTime bool) *Pending {
	p := &Pending{log: l, res: AppendResult{First: -1, Last: -1, CommitTimestamp: -1, Duplicate: true, LogAppendTime: logAppendTime}}
	if v.known {
		p.res.First, p.res.CommitTimestamp = v.stored.base, v.stored.commit
		p.res.Last = v.stored.base + mink.Offset(v.stored.delta)
	}
	l.landed()
	i := sort.Search(len(l.mu.flights), func(i int) bool { return l.mu.flights[i].end > v.stored.base })
	if i < len(l.mu.flights) && v.stored.base >= l.s.HighWatermark() {
		p.ticket = l.mu.flights[i].ticket
	}
	return p
}

type counters struct {
	batches, records, bytes, duplicates, outOfOrder, fenced, refused atomic.Int64
}

// Stats is what a tablet tells about itself. Counts are since it opened.
type Stats struct {
	Batches, Records, Bytes int64 // appended
	Duplicates              int64
	OutOfOrder              int64
	Fenced                  int64
	Refused                 int64 // batches that failed their checks
	Writers                 int   // idempotent writers that are remembered
	LogBytes                int64 // of the whole log since its first record
	Quarantined             int64 // batches that could not be decoded
	Quarantine              []Quarantined
	Clean                   CleanStats
}

// Stats answers a snapshot.
func (l *Log) Stats() Stats {
	s := Stats{
		Batches: l.counts.batches.Load(), Records: l.counts.records.Load(), Bytes: l.counts.bytes.Load(),
		Duplicates: l.counts.duplicates.Load(), OutOfOrder: l.counts.outOfOrder.Load(), Fenced: l.counts.fenced.Load(),
		Refused: l.counts.refused.Load(),
	}
	l.mu.Lock()
	s.Writers, s.LogBytes = l.mu.st.writers.len(), l.mu.st.sizes.total
	l.mu.Unlock()
	s.Quarantine, s.Quarantined = l.quarantine.list()
	s.Clean = l.CleanStats()
	return s
}
