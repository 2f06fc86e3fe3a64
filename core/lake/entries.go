package lake

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// liveEntries walks the entries of a snapshot's manifests that are not deleted: of manifests
// with one of contents, or of all when there are none. No snapshot has none. An error is the
// last that is yielded.
func liveEntries(ctx context.Context, tbl *table.Table, s *table.Snapshot, contents ...iceberg.ManifestContent) iter.Seq2[iceberg.ManifestEntry, error] {
	return func(yield func(iceberg.ManifestEntry, error) bool) {
		if s == nil {
			return
		}
		fs, err := tbl.FS(ctx)
		var manifests []iceberg.ManifestFile
		if err == nil {
			manifests, err = s.Manifests(fs)
		}
		if err != nil {
			yield(nil, fmt.Errorf("files of snapshot %d: %w", s.SnapshotID, err))
			return
		}
		for _, m := range manifests {
			if len(contents) > 0 && !slices.Contains(contents, m.ManifestContent()) {
				continue
			}
			for e, err := range m.Entries(fs, true) {
				if err != nil {
					yield(nil, fmt.Errorf("files of snapshot %d: %w", s.SnapshotID, err))
					return
				}
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}
