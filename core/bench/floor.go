package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// floor is the least that a Kafka broker in Go does: it parses Produce requests
// and drops the batches (drop), or keeps them in memory and serves them (keep).
// It checks nothing and remembers nothing about producers. What a real broker
// needs on top is what a real broker costs.
type floor struct {
	keep bool
	host string
	port int32
	pids atomic.Int64

	mu     sync.Mutex
	topics map[string]*floorTopic
	ids    map[[16]byte]*floorTopic
}

type floorTopic struct {
	name  string
	id    [16]byte
	parts []*floorPart
}

type floorPart struct {
	mu      sync.Mutex
	end     int64
	starts  []int64
	batches [][]byte
}

func runFloor(ctx context.Context, keep bool) error {
	l, err := listen(ctx)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	f := &floor{keep: keep, host: host, port: int32(n), topics: map[string]*floorTopic{}, ids: map[[16]byte]*floorTopic{}}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	ready(l.Addr().String(), "")
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		conns.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			if err := f.serve(c); !errors.Is(err, io.EOF) && ctx.Err() == nil {
				fmt.Println("connection:", err)
			}
		})
	}
}

// serve answers requests one by one.
func (f *floor) serve(c net.Conn) error {
	in := bufio.NewReaderSize(c, 64<<10)
	var frame, out []byte
	var produce kmsg.ProduceRequest
	for {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint32(head[:]))
		if n < 10 || n > 128<<20 {
			return fmt.Errorf("a request of %d bytes", n)
		}
		if cap(frame) < n || f.keep { // kept batches lie in the frame
			frame = make([]byte, n)
		}
		frame = frame[:n]
		if _, err := io.ReadFull(in, frame); err != nil {
			return err
		}
		req, correlation, body, err := parseRequest(frame, &produce)
		if err != nil {
			return err
		}
		if err := req.ReadFrom(body); err != nil {
			return err
		}
		if r, ok := req.(*kmsg.FetchRequest); ok {
			pieces := f.fetch(r, correlation)
			_, err = pieces.WriteTo(c)
		} else if resp := f.answer(req); resp != nil {
			out, err = reply(c, out, req, resp, correlation)
		} else {
			err = fmt.Errorf("api key %d", req.Key())
		}
		if err != nil {
			return err
		}
	}
}

// parseRequest reads the request's header: key, version, correlation, client id,
// and empty tags.
func parseRequest(frame []byte, produce *kmsg.ProduceRequest) (kmsg.Request, uint32, []byte, error) {
	key, version := int16(binary.BigEndian.Uint16(frame)), int16(binary.BigEndian.Uint16(frame[2:]))
	var req kmsg.Request = produce
	if key != 0 {
		req = kmsg.RequestForKey(key)
	}
	if req == nil {
		return nil, 0, nil, fmt.Errorf("api key %d", key)
	}
	req.SetVersion(version)
	at := 10
	if n := int(int16(binary.BigEndian.Uint16(frame[8:]))); n > 0 {
		at += n
	}
	if req.IsFlexible() {
		at++
	}
	if at > len(frame) {
		return nil, 0, nil, errors.New("a short request")
	}
	return req, binary.BigEndian.Uint32(frame[4:]), frame[at:], nil
}

func reply(c net.Conn, out []byte, req kmsg.Request, resp kmsg.Response, correlation uint32) ([]byte, error) {
	out = binary.BigEndian.AppendUint32(append(out[:0], 0, 0, 0, 0), correlation)
	if req.IsFlexible() && req.Key() != 18 { // ApiVersions' header never has tags
		out = append(out, 0)
	}
	resp.SetVersion(req.GetVersion())
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	_, err := c.Write(out)
	return out, err
}

func (f *floor) answer(req kmsg.Request) kmsg.Response {
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp := kmsg.NewPtrApiVersionsResponse()
		for _, k := range [][3]int16{{0, 3, 9}, {1, 11, 11}, {2, 1, 5}, {3, 4, 9}, {18, 0, 3}, {19, 2, 5}, {22, 0, 2}} {
			resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k[0], MinVersion: k[1], MaxVersion: k[2]})
		}
		return resp
	case *kmsg.MetadataRequest:
		return f.metadata(r)
	case *kmsg.CreateTopicsRequest:
		return f.create(r)
	case *kmsg.InitProducerIDRequest:
		resp := kmsg.NewPtrInitProducerIDResponse()
		resp.ProducerID, resp.ProducerEpoch = f.pids.Add(1), 0
		return resp
	case *kmsg.ProduceRequest:
		return f.produce(r)
	case *kmsg.ListOffsetsRequest:
		return f.offsets(r)
	}
	return nil
}

func (f *floor) topic(name string) *floorTopic {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.topics[name]
}

func (f *floor) create(r *kmsg.CreateTopicsRequest) *kmsg.CreateTopicsResponse {
	resp := kmsg.NewPtrCreateTopicsResponse()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range r.Topics {
		made := &floorTopic{name: t.Topic, id: [16]byte{15: byte(len(f.topics) + 1)}}
		for range max(1, t.NumPartitions) {
			made.parts = append(made.parts, &floorPart{})
		}
		f.topics[t.Topic], f.ids[made.id] = made, made
		a := kmsg.NewCreateTopicsResponseTopic()
		a.Topic, a.TopicID, a.NumPartitions, a.ReplicationFactor = t.Topic, made.id, int32(len(made.parts)), 1
		resp.Topics = append(resp.Topics, a)
	}
	return resp
}

func (f *floor) metadata(r *kmsg.MetadataRequest) *kmsg.MetadataResponse {
	resp := kmsg.NewPtrMetadataResponse()
	resp.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: f.host, Port: f.port}}
	resp.ControllerID = 1
	for _, asked := range r.Topics {
		a := kmsg.NewMetadataResponseTopic()
		a.Topic = asked.Topic
		t := f.topic(*asked.Topic)
		if t == nil {
			a.ErrorCode = 3
			resp.Topics = append(resp.Topics, a)
			continue
		}
		a.TopicID = t.id
		for i := range t.parts {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader, p.Replicas, p.ISR = int32(i), 1, []int32{1}, []int32{1}
			a.Partitions = append(a.Partitions, p)
		}
		resp.Topics = append(resp.Topics, a)
	}
	return resp
}

func (f *floor) produce(r *kmsg.ProduceRequest) *kmsg.ProduceResponse {
	resp := kmsg.NewPtrProduceResponse()
	for i := range r.Topics {
		t := f.topic(r.Topics[i].Topic)
		a := kmsg.NewProduceResponseTopic()
		a.Topic = r.Topics[i].Topic
		for j := range r.Topics[i].Partitions {
			in := &r.Topics[i].Partitions[j]
			out := kmsg.NewProduceResponseTopicPartition()
			out.Partition = in.Partition
			var h kmsg.RecordBatch
			if t == nil || int(in.Partition) >= len(t.parts) || h.ReadFrom(in.Records) != nil {
				out.ErrorCode = 3
			} else {
				out.BaseOffset = t.parts[in.Partition].append(in.Records, int64(h.NumRecords), f.keep)
			}
			a.Partitions = append(a.Partitions, out)
		}
		resp.Topics = append(resp.Topics, a)
	}
	return resp
}

func (p *floorPart) append(batch []byte, records int64, keep bool) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.end
	p.end += records
	if keep {
		binary.BigEndian.PutUint64(batch, uint64(at))
		p.starts = append(p.starts, at)
		p.batches = append(p.batches, batch)
	}
	return at
}

func (f *floor) offsets(r *kmsg.ListOffsetsRequest) *kmsg.ListOffsetsResponse {
	resp := kmsg.NewPtrListOffsetsResponse()
	for _, t := range r.Topics {
		a := kmsg.NewListOffsetsResponseTopic()
		a.Topic = t.Topic
		known := f.topic(t.Topic)
		for _, p := range t.Partitions {
			out := kmsg.NewListOffsetsResponseTopicPartition()
			out.Partition, out.Offset, out.LeaderEpoch = p.Partition, 0, -1
			if p.Timestamp == -1 && known != nil {
				known.parts[p.Partition].mu.Lock()
				out.Offset = known.parts[p.Partition].end
				known.parts[p.Partition].mu.Unlock()
			}
			a.Partitions = append(a.Partitions, out)
		}
		resp.Topics = append(resp.Topics, a)
	}
	return resp
}

// emptyWait is how long a Fetch that finds nothing is held: nobody measures
// those.
const emptyWait = 5 * time.Millisecond

// fetch is the pieces of a Fetch v11 response, batches where they lie; the first
// piece begins with the frame's header.
//
//	throttle i32 | error i16 | session i32 | topics: name, partitions: (index i32 | error i16
//	| high watermark, last stable, log start i64 | aborted: none | replica i32 | records)
func (f *floor) fetch(r *kmsg.FetchRequest, correlation uint32) net.Buffers {
	be := binary.BigEndian
	b := be.AppendUint32(make([]byte, 4, 1<<10), correlation)
	b = append(b, make([]byte, 10)...)
	b = be.AppendUint32(b, uint32(len(r.Topics)))
	var pieces net.Buffers
	left, total := int(r.MaxBytes), 0
	for _, t := range r.Topics {
		b = append(be.AppendUint16(b, uint16(len(t.Topic))), t.Topic...)
		b = be.AppendUint32(b, uint32(len(t.Partitions)))
		known := f.topic(t.Topic)
		for _, p := range t.Partitions {
			var batches [][]byte
			var n int
			var end int64
			b = be.AppendUint32(b, uint32(p.Partition))
			if known == nil {
				b = be.AppendUint16(b, 3)
			} else {
				batches, n, end = known.parts[p.Partition].read(p.FetchOffset, min(left, int(p.PartitionMaxBytes)))
				b = be.AppendUint16(b, 0)
			}
			b = be.AppendUint64(be.AppendUint64(b, uint64(end)), uint64(end))
			b = be.AppendUint64(b, 0)
			b = be.AppendUint32(be.AppendUint32(b, 0), math.MaxUint32)
			b = be.AppendUint32(b, uint32(n))
			pieces = append(append(pieces, b), batches...)
			total, left, b = total+len(b)+n, left-n, make([]byte, 0, 64)
		}
	}
	if left == int(r.MaxBytes) {
		time.Sleep(emptyWait)
	}
	total += len(b)
	be.PutUint32(pieces[0], uint32(total-4))
	return append(pieces, b)
}

// read answers batches from the one that holds offset from, the first whatever
// its size.
func (p *floorPart) read(from int64, limit int) (batches [][]byte, n int, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from >= p.end || limit <= 0 {
		return nil, 0, p.end
	}
	i, found := slices.BinarySearch(p.starts, from)
	if !found {
		i--
	}
	for _, b := range p.batches[i:] {
		if n > 0 && n+len(b) > limit {
			break
		}
		batches, n = append(batches, b), n+len(b)
	}
	return batches, n, p.end
}
