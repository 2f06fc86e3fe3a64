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

	"google.golang.org/grpc"

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
)

// ServerOptions are a plugin's. gRPC's own receive limit of 4 MiB is too small for
// a page of keys.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(socketBuffers), grpc.WriteBufferSize(socketBuffers),
		grpc.MaxRecvMsgSize(messageMax), grpc.MaxSendMsgSize(messageMax),
		grpc.MaxConcurrentStreams(callsMax),
	}
}

// DialOptions are a host's.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec()),
			grpc.MaxCallRecvMsgSize(messageMax), grpc.MaxCallSendMsgSize(messageMax)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(socketBuffers), grpc.WithWriteBufferSize(socketBuffers),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	}
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
