package storehead

import (
	"io"
	"log/slog"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/objstore"
)

// KeeperOf is the keeper of a process whose start was not checked.
func KeeperOf(store objstore.Store, log metalog.Log, replica *metalog.Replica, incarnation uint64) *Keeper {
	return newKeeper(Deps{Objects: store, WALStore: store, Log: log, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, replica, incarnation)
}
