package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/mink-project/mink/core/fault"
)

// brokerCommand runs one broker until the process is ended.
func brokerCommand(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: bench broker node|kfake|drop|keep [flags]")
	}
	fs := flag.NewFlagSet("bench broker", flag.ContinueOnError)
	dir := fs.String("dir", "", "node: directory of the store and the metadata")
	listen := fs.String("kafka", "127.0.0.1:0", "node: address of the Kafka port")
	latency := fs.String("latency", "s3like", "node: latency of the store: none, s3like, standard, express")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "node":
		l, ok := latencies[*latency]
		if !ok || *dir == "" {
			return errors.New("node needs -dir, and -latency one of none, s3like, standard, express")
		}
		return runNode(ctx, filepath.Clean(*dir), *listen, l, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	case "kfake":
		return runKfake(ctx)
	case "drop", "keep":
		return runFloor(ctx, args[0] == "keep")
	default:
		return fmt.Errorf("unknown broker %q", args[0])
	}
}

var latencies = map[string]fault.Latency{
	"none": {}, "s3like": fault.S3Like(), "standard": fault.S3StandardLike(), "express": fault.S3ExpressLike(),
}

func ready(kafka, http string) {
	fmt.Printf("ready: kafka %s, http %s\n", kafka, http)
}

// runKfake is franz-go's in-memory broker: a peer without durability.
func runKfake(ctx context.Context) error {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "16777216"}))
	if err != nil {
		return err
	}
	defer c.Close()
	ready(c.ListenAddrs()[0], "")
	<-ctx.Done()
	return nil
}

func listen(ctx context.Context) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
}
