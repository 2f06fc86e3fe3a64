package flight

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// run is the frame of every call: it waits for the metadata index that the
// caller has seen, keeps a panic from ending the node, and turns errors into
// statuses.
func (s *service) run(ctx context.Context, fullMethod string, call func() error) (err error) {
	method, began := path.Base(fullMethod), time.Now()
	s.metrics.Calls(1)
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("flight call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error; the node's log has the details")
		}
		err = s.toStatus(method, err)
		s.metrics.Calls(-1)
		s.metrics.Call(method, status.Code(err).String(), time.Since(began))
	}()
	if err := s.waitApplied(ctx); err != nil {
		return err
	}
	return call()
}

// waitApplied keeps read-your-writes: the caller names the newest metadata index
// that it has seen, here or on another node.
func (s *service) waitApplied(ctx context.Context) error {
	values := metadata.ValueFromIncomingContext(ctx, api.HeaderMinAppliedIndex)
	if len(values) == 0 {
		return nil
	}
	index, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil {
		return fmt.Errorf("%w: header %s is %.40q, want a number", mink.ErrInvalid, api.HeaderMinAppliedIndex, values[0])
	}
	if index <= s.backend.View().Index() {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, s.cfg.AppliedWait)
	defer cancel()
	err = s.backend.WaitApplied(wait, index)
	if err != nil && ctx.Err() == nil && (wait.Err() != nil || errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("this node has applied metadata index %d, the request wants %d: %w", s.backend.View().Index(), index, mink.ErrUnavailable)
	}
	return err
}

func (s *service) appliedIndex() metadata.MD {
	return metadata.Pairs(api.HeaderAppliedIndex, strconv.FormatUint(s.backend.View().Index(), 10))
}

func (s *service) unaryCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	err = s.run(ctx, info.FullMethod, func() error {
		resp, err = handler(ctx, req)
		return firstOf(err, grpc.SetHeader(ctx, s.appliedIndex()))
	})
	return resp, err
}

func (s *service) streamCall(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return s.run(ss.Context(), info.FullMethod, func() error {
		err := handler(srv, &callStream{ServerStream: ss, service: s})
		ss.SetTrailer(s.appliedIndex())
		return err
	})
}

// callStream adds the applied index to the headers, as late as it can: what an
// action did is in it.
type callStream struct {
	grpc.ServerStream
	service *service
	sent    bool // SendMsg is called by one goroutine at a time
}

// SendMsg implements grpc.ServerStream.
func (c *callStream) SendMsg(m any) error {
	if !c.sent {
		c.sent = true
		if err := c.SetHeader(c.service.appliedIndex()); err != nil {
			return err
		}
	}
	return c.ServerStream.SendMsg(m)
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
