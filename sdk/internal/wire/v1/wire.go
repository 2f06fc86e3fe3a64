// Package wire translates between the Go contracts of sdk/ and version 1 of the
// plugin protocol (sdk/proto/mink/plugin/v1), both sides of it: it is the only
// place that knows the generated messages. A kind's files are <kind>_server.go,
// which a plugin registers, and <kind>_client.go, which a host gets as the
// contract's interface.
//
// It is transport: it checks what the other side sent, carries contexts and
// deadlines, and never retries.
package wire

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
)

// Measured on two cores for 8 MiB objects: gRPC's own 64 KiB windows make every
// object wait for round trips.
const (
	streamWindow  = 8 << 20
	connWindow    = 32 << 20
	socketBuffers = 256 << 10
	// messageMax bounds what one message may make the other side hold. The largest
	// are pages of keys: 5,000 of up to a kilobyte on Azure.
	messageMax = 16 << 20
	// callsMax is how many calls a plugin works on at once; others wait at the host.
	callsMax = 256
	// streamsMax leaves room for what is no call of a contract: go-plugin's own streams,
	// and health checks, which must not wait for a slow store's calls to end.
	streamsMax = callsMax + 16
)

// ServerOptions are a plugin's. gRPC's own receive limit of 4 MiB is too small for
// a page of keys.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(socketBuffers), grpc.WriteBufferSize(socketBuffers),
		grpc.MaxRecvMsgSize(messageMax), grpc.MaxSendMsgSize(messageMax),
		grpc.MaxConcurrentStreams(streamsMax),
	}
}

// DialOptions are a host's, for one connection.
func DialOptions() []grpc.DialOption {
	l := limit{semaphore.NewWeighted(callsMax)}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec()),
			grpc.MaxCallRecvMsgSize(messageMax), grpc.MaxCallSendMsgSize(messageMax)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(socketBuffers), grpc.WithWriteBufferSize(socketBuffers),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	}
}

// limit holds back the calls of the contracts beyond callsMax.
type limit struct{ room *semaphore.Weighted }

// enter waits for room; the caller calls leave, more than once if it likes.
func (l limit) enter(ctx context.Context, method string) (leave func(), err error) {
	if !strings.HasPrefix(method, "/mink.plugin.") {
		return func() {}, nil
	}
	if err := l.room.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return sync.OnceFunc(func() { l.room.Release(1) }), nil
}

func (l limit) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	leave, err := l.enter(ctx, method)
	if err != nil {
		return err
	}
	defer leave()
	return invoke(ctx, method, req, reply, conn, opts...)
}

func (l limit) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	leave, err := l.enter(ctx, method)
	if err != nil {
		return nil, err
	}
	stream, err := streamer(ctx, desc, conn, method, append(opts, grpc.OnFinish(func(error) { leave() }))...)
	if err != nil {
		leave() // gRPC calls what is for the end of a stream only when there was one
	}
	return stream, err
}

type pluginServer struct {
	pb.UnimplementedPluginServer
	manifest []byte
}

// RegisterPlugin adds the service that every plugin has.
func RegisterPlugin(s *grpc.Server, manifest []byte) {
	pb.RegisterPluginServer(s, pluginServer{manifest: manifest})
}

func (p pluginServer) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return &pb.DescribeResponse{ManifestJson: p.manifest}, nil
}

// Describe asks a plugin for its manifest.
func Describe(ctx context.Context, conn grpc.ClientConnInterface) ([]byte, error) {
	resp, err := pb.NewPluginClient(conn).Describe(ctx, &pb.DescribeRequest{})
	if err != nil {
		return nil, fmt.Errorf("it does not answer the first call, for its manifest: %w", err)
	}
	return resp.GetManifestJson(), nil
}
