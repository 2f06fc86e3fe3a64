package wire_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/internal/wire/v1"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

// dial connects to a server that register fills, over a unix socket.
func dial(t *testing.T, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(wire.ServerOptions()...)
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+path, append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func open(t *testing.T, conn *grpc.ClientConn) objstore.Store {
	t.Helper()
	s, err := wire.OpenObjectStore(t.Context(), conn, "test://", nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStoreConformsOverTheWire(t *testing.T) {
	conn := dial(t, func(s *grpc.Server) {
		wire.RegisterObjectStore(s, func(context.Context, string, map[string]string) (objstore.Store, error) {
			return memstore.New(memstore.Default()), nil
		})
	})
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, conn) })
}
