package server

import (
	"context"
	"log/slog"
	"net"
)

// flightListener is the Flight edge as the assembly runs it.
type flightListener interface {
	Addr() net.Addr
	Run(ctx context.Context) error
	Close() error
}

type tempFlight struct{ net.Listener }

func (t tempFlight) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func openFlight(ctx context.Context, cfg Config, b *backend, logger *slog.Logger) (flightListener, error) {
	l, err := net.Listen("tcp", cfg.Listen)
	return tempFlight{l}, err
}
