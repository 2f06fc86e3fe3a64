package wire_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/internal/wire/v1"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

func open(t *testing.T, conn *grpc.ClientConn) objstore.Store {
	t.Helper()
	s, err := wire.OpenObjectStore(t.Context(), conn, "test://", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStoreConformsOverTheWire(t *testing.T) {
	conn := wire.Dial(t, func(s *grpc.Server) {
		wire.RegisterObjectStore(s, func(context.Context, string, map[string]string) (objstore.Store, error) {
			return memstore.New(memstore.Default()), nil
		}, nil)
	})
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, conn) })
}
