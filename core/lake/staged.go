package lake

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/codec"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// A round that is not done has up to three objects below _staged/:
//
//	<round>.open      made by BeginRound: fence and base
//	<round>.files     made by Prepare: the list of its files
//	<round>.decision  made once, by whoever is first: "commit" or "void"
//
// Files of a round that was given up are deleted while its worker may be alive and
// about to commit it. The decision keeps the two apart:
//
//	commit:  PUT decision=commit   GET open, files      commit to the catalog
//	clean:   PUT decision=void     HEAD open        delete data
//
// and both delete files, open, decision in this order at their end. The PUTs are
// create-only. A worker that comes second finds "void", or, when the cleaner is
// done and the decision gone, no open: it commits nothing. A cleaner that comes
// after a commit that is done finds no open. One that comes in the middle finds
// "commit": the commit may be on its way to the catalog still. It deletes nothing until the table's last round is another one than the
// round's base: every attempt asserts the snapshot that was current when that was
// the last round, and cannot succeed any more.

type openRound struct {
	Fence mink.LeaseEpoch `json:"fence"`
	Base  sink.RoundID    `json:"base"`
}

type decision struct {
	Commit bool         `json:"commit"`
	Base   sink.RoundID `json:"base"`
}

// stagedNote is what Prepare answers.
type stagedNote struct {
	Version int          `json:"version"`
	Table   string       `json:"table_uuid"`
	Round   sink.RoundID `json:"round"`
	Schema  int          `json:"schema"` // Iceberg's id of the files' schema
	Spec    int          `json:"spec"`
	Format  int          `json:"format"`
	Files   int          `json:"files"`
	CRC     uint32       `json:"crc32c"` // of the list
	// Replaced are how many locations of files follow in the list that the round's take
	// the place of.
	Replaced int `json:"replaced,omitempty"`
	// Planned is the snapshot whose rows the position deletes name and whose files are
	// replaced; 0: none. Pinned: there are some, and the commit is on that snapshot or
	// not at all.
	Planned int64 `json:"planned,omitempty"`
	Pinned  bool  `json:"pinned,omitempty"`
}

const stagedVersion = 1

func parseNote(staged []byte, round sink.RoundID) (stagedNote, error) {
	var n stagedNote
	if err := json.Unmarshal(staged, &n); err != nil {
		return n, fmt.Errorf("%w: staged state of round %s: %w", sink.ErrInvalid, round, err)
	}
	if n.Version != stagedVersion || n.Round != round {
		return n, fmt.Errorf("%w: staged state of version %d of round %q, want %d of round %s", sink.ErrInvalid, n.Version, n.Round, stagedVersion, round)
	}
	return n, nil
}

func (t *lakeTable) stagedKey(round sink.RoundID, what string) string {
	return t.dir + stagedDir + string(round) + "." + what
}

func (t *lakeTable) putJSON(ctx context.Context, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = t.store.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{data}, CreateOnly: true})
	return err
}

func (t *lakeTable) getJSON(ctx context.Context, key string, v any) error {
	got, err := t.store.GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(got.Data, v); err != nil {
		return fmt.Errorf("%w: %s: %w", sink.ErrCorrupt, key, err)
	}
	return nil
}

// decide makes the round's decision, or answers the one that was made. A decision
// whose outcome is unknown is looked up.
func (t *lakeTable) decide(ctx context.Context, round sink.RoundID, d decision) (decision, error) {
	key := t.stagedKey(round, "decision")
	err := t.putJSON(ctx, key, d)
	if err == nil {
		return d, nil
	}
	if !errors.Is(err, objstore.ErrAlreadyExists) && !errors.Is(err, objstore.ErrUnknownOutcome) {
		return d, fmt.Errorf("decision on round %s: %w", round, err)
	}
	var made decision
	if err := t.getJSON(ctx, key, &made); err != nil {
		return d, fmt.Errorf("decision on round %s: %w", round, err)
	}
	return made, nil
}

// writeFiles keeps the list of a round's files, and behind them the locations of those
// that they replace: each entry with its length in front.
func (t *lakeTable) writeFiles(ctx context.Context, note *stagedNote, files []iceberg.DataFile, replaced []string, meta table.Metadata) error {
	ice, spec, err := noteSchema(*note, meta)
	if err != nil {
		return err
	}
	var list []byte
	for _, f := range files {
		one, err := codec.EncodeDataFile(f, spec, ice, note.Format)
		if err != nil {
			return fmt.Errorf("%s: %w", f.FilePath(), err)
		}
		list = binary.AppendUvarint(list, uint64(len(one)))
		list = append(list, one...)
	}
	for _, location := range replaced {
		list = binary.AppendUvarint(list, uint64(len(location)))
		list = append(list, location...)
	}
	note.Files, note.Replaced, note.CRC = len(files), len(replaced), crc32.Checksum(list, castagnoli)
	_, err = t.store.Put(ctx, objstore.PutRequest{Key: t.stagedKey(note.Round, "files"), Chunks: [][]byte{list}, CreateOnly: true})
	return err
}

func noteSchema(note stagedNote, meta table.Metadata) (*iceberg.Schema, iceberg.PartitionSpec, error) {
	spec := meta.PartitionSpecByID(note.Spec)
	for _, s := range meta.Schemas() {
		if s.ID == note.Schema && spec != nil {
			return s, *spec, nil
		}
	}
	return nil, iceberg.PartitionSpec{}, fmt.Errorf("%w: round %s was written with schema %d and partition spec %d, which the table does not have any more", sink.ErrNotExist, note.Round, note.Schema, note.Spec)
}

// readFiles reads the list after the decision to commit was made.
func (t *lakeTable) readFiles(ctx context.Context, note stagedNote, meta table.Metadata) ([]iceberg.DataFile, []string, error) {
	if _, err := t.store.Head(ctx, t.stagedKey(note.Round, "open")); err != nil {
		return nil, nil, fmt.Errorf("staged round %s: %w", note.Round, err)
	}
	got, err := t.store.GetRange(ctx, objstore.GetRangeRequest{Key: t.stagedKey(note.Round, "files"), Length: -1})
	if err != nil {
		return nil, nil, fmt.Errorf("staged round %s: %w", note.Round, err)
	}
	if crc := crc32.Checksum(got.Data, castagnoli); crc != note.CRC {
		return nil, nil, fmt.Errorf("staged round %s: %w: CRC32C of the list of files is %08x, want %08x", note.Round, sink.ErrCorrupt, crc, note.CRC)
	}
	ice, spec, err := noteSchema(note, meta)
	if err != nil {
		return nil, nil, err
	}
	files := make([]iceberg.DataFile, 0, note.Files)
	var replaced []string
	for list := got.Data; len(list) > 0; {
		n, used := binary.Uvarint(list)
		if used <= 0 || n > uint64(len(list)-used) {
			return nil, nil, fmt.Errorf("staged round %s: %w: the list of files is cut off", note.Round, sink.ErrCorrupt)
		}
		if len(files) == note.Files {
			replaced, list = append(replaced, string(list[used:used+int(n)])), list[used+int(n):]
			continue
		}
		f, err := codec.DecodeDataFile(list[used:used+int(n)], spec, ice, note.Format)
		if err != nil {
			return nil, nil, fmt.Errorf("staged round %s: %w: %w", note.Round, sink.ErrCorrupt, err)
		}
		files, list = append(files, f), list[used+int(n):]
	}
	if len(files) != note.Files || len(replaced) != note.Replaced {
		return nil, nil, fmt.Errorf("staged round %s: %w: the list has %d files and %d that are replaced, want %d and %d", note.Round, sink.ErrCorrupt, len(files), len(replaced), note.Files, note.Replaced)
	}
	return files, replaced, nil
}

// forget removes what is staged of a round that was committed.
func (t *lakeTable) forget(ctx context.Context, round sink.RoundID) error {
	return t.deleteInOrder(ctx, t.stagedKey(round, "files"), t.stagedKey(round, "open"), t.stagedKey(round, "decision"))
}

// giveUp removes a round, if it can never be committed any more. It answers nil
// also when it left the round as it is.
func (t *lakeTable) giveUp(ctx context.Context, round sink.RoundID) error {
	d, err := t.decide(ctx, round, decision{})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil // removed by another one, just now
	}
	if err != nil {
		return err
	}
	if d.Commit {
		// The table is loaded after the decision is known: what was seen before may be
		// older than the round's base.
		tbl, err := t.load(ctx)
		if err != nil {
			return err
		}
		last, err := currentOffsets(ctx, tbl)
		if err != nil {
			return err
		}
		switch done, err := t.isCommitted(ctx, tbl, round); {
		case err != nil:
			return err
		case done:
			return t.forget(ctx, round)
		case last.Round == d.Base:
			return nil // may be on its way
		}
	} else if _, err := t.store.Head(ctx, t.stagedKey(round, "open")); errors.Is(err, objstore.ErrNotExist) {
		return t.forget(ctx, round) // it was committed or removed, with its decision, before ours
	} else if err != nil {
		return err
	}
	if err := t.deleteAll(ctx, t.dir+roundDir(round)); err != nil {
		return err
	}
	return t.forget(ctx, round)
}

// isCommitted looks for a round in all the snapshots that are there, and for its
// files in the current one.
func (t *lakeTable) isCommitted(ctx context.Context, tbl *table.Table, round sink.RoundID) (bool, error) {
	if tbl.Properties()[keyRound] == string(round) {
		return true, nil
	}
	for _, s := range tbl.Metadata().Snapshots() {
		if s.Summary != nil && s.Summary.Properties[keyRound] == string(round) {
			return true, nil
		}
	}
	for e, err := range liveEntries(ctx, tbl, tbl.CurrentSnapshot()) {
		if err != nil {
			return false, err
		}
		if strings.HasSuffix(path.Dir(e.DataFile().FilePath())+"/", "/"+roundDir(round)) {
			return true, nil
		}
	}
	return false, nil
}

// cleanRounds gives up the rounds of a fence and of lower ones, but for the
// one that begins, and removes what is left of rounds whose removal was cut off.
func (t *lakeTable) cleanRounds(ctx context.Context, begins sink.RoundID, fence mink.LeaseEpoch) error {
	prefix := t.dir + stagedDir
	open := map[sink.RoundID]bool{}
	err := t.eachKey(ctx, prefix, func(key string) error {
		round, what, _ := strings.Cut(strings.TrimPrefix(key, prefix), ".")
		open[sink.RoundID(round)] = open[sink.RoundID(round)] || what == "open"
		return nil
	})
	if err != nil {
		return err
	}
	for _, round := range slices.Sorted(maps.Keys(open)) {
		switch {
		case round == begins:
			continue
		case !open[round]:
			err = t.forget(ctx, round)
		default:
			err = t.giveUpOlder(ctx, round, fence)
		}
		if err != nil {
			return fmt.Errorf("clean up round %s: %w", round, err)
		}
	}
	return nil
}

func (t *lakeTable) giveUpOlder(ctx context.Context, round sink.RoundID, fence mink.LeaseEpoch) error {
	var o openRound
	switch err := t.getJSON(ctx, t.stagedKey(round, "open"), &o); {
	case errors.Is(err, objstore.ErrNotExist):
		return nil
	case err != nil:
		return err
	case o.Fence > fence:
		return nil
	}
	return t.giveUp(ctx, round)
}

func (t *lakeTable) eachKey(ctx context.Context, prefix string, visit func(key string) error) error {
	return t.eachObject(ctx, prefix, func(o objstore.ObjectInfo) error { return visit(o.Key) })
}

func (t *lakeTable) eachObject(ctx context.Context, prefix string, visit func(objstore.ObjectInfo) error) error {
	for after := ""; ; {
		page, err := t.store.List(ctx, objstore.ListRequest{Prefix: prefix, StartAfter: after})
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, o := range page.Objects {
			if err := visit(o); err != nil {
				return err
			}
			after = o.Key
		}
		if !page.More {
			return nil
		}
	}
}

func (t *lakeTable) deleteAll(ctx context.Context, prefix string) error {
	var keys []string
	if err := t.eachKey(ctx, prefix, func(key string) error { keys = append(keys, key); return nil }); err != nil {
		return err
	}
	return t.delete(ctx, keys...)
}

func (t *lakeTable) delete(ctx context.Context, keys ...string) error {
	for len(keys) > 0 {
		n := min(len(keys), objstore.DeleteMax)
		resp, err := t.store.DeleteBatch(ctx, keys[:n])
		if err = errors.Join(append(resp.Errors, err)...); err != nil {
			return fmt.Errorf("delete files below %s: %w", t.dir, err)
		}
		keys = keys[n:]
	}
	return nil
}

func (t *lakeTable) deleteInOrder(ctx context.Context, keys ...string) error {
	for _, k := range keys {
		if err := t.delete(ctx, k); err != nil {
			return err
		}
	}
	return nil
}
