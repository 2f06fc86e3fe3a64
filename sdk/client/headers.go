package client

import (
	"context"
	"path"
	"slices"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/mink-project/mink/sdk/api"
)

// Read your writes: every call names the newest metadata index that any node has told
// this client, and the node that gets it waits until it has applied as much. So a
// table that was made at one node is there on the next, and what a list of partitions
// said is known to the leaders that it named.

// onward adds the headers of a call.
func (c *Client) onward(ctx context.Context, method string) context.Context {
	var kv []string
	if index := c.seen.Load(); index > 0 {
		kv = append(kv, api.HeaderMinAppliedIndex, strconv.FormatUint(index, 10))
	}
	switch path.Base(method) {
	case "DoGet", "DoPut", "DoExchange": // to a leader, as this client thinks: it wants to hear when it is not
		kv = append(kv, api.HeaderForwarded, "1")
	}
	return metadata.AppendToOutgoingContext(ctx, kv...)
}

// saw takes the index of an answer.
func (c *Client) saw(md metadata.MD) {
	values := md.Get(api.HeaderAppliedIndex)
	if len(values) == 0 {
		return
	}
	index, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil {
		return // no node of ours
	}
	for have := c.seen.Load(); index > have && !c.seen.CompareAndSwap(have, index); have = c.seen.Load() {
	}
}

func (c *Client) streamHeaders(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(c.onward(ctx, method), d, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &seeingStream{ClientStream: s, client: c}, nil
}

// seeingStream looks at the index in the headers, and at the end in the trailer. Its
// RecvMsg is called by one goroutine at a time, as that of every stream.
type seeingStream struct {
	grpc.ClientStream
	client *Client
	begun  bool
}

// RecvMsg implements grpc.ClientStream.
func (s *seeingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err != nil:
		s.client.saw(s.Trailer())
	case !s.begun:
		s.begun = true
		if md, herr := s.Header(); herr == nil { // it has come: a message has
			s.client.saw(md)
		}
	}
	return err
}

// learnedMax bounds the addresses of nodes that the client was not given.
const learnedMax = 64

// learn remembers nodes that the metadata name: any of them answers when those of the
// bootstrap list are gone.
func (c *Client) learn(addresses ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addresses {
		if a == "" || slices.Contains(c.cfg.Bootstrap, a) || slices.Contains(c.mu.learned, a) {
			continue
		}
		if len(c.mu.learned) == learnedMax {
			c.mu.learned = slices.Delete(c.mu.learned, 0, 1)
		}
		c.mu.learned = append(c.mu.learned, a)
	}
}
