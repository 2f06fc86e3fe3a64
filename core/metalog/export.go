package metalog

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// An export is the state at one index, as one file, big endian:
//
//	 0  8  "MINKMETA"
//	 8  4  version, 1
//	12  4  n, length of the description
//	16  n  description, JSON
//	 .  4  CRC32C of all before
//	( length 4 | snapshot part )*   the last part says that it is the last
//	 .  4  zero
//	 . 32  SHA-256 of all before
const (
	exportMagic   = "MINKMETA"
	exportVersion = 1
	aboutBytesMax = 64 << 10
)

// ExportInfo describes an export; its head can be read without the rest.
type ExportInfo struct {
	Index       uint64    `json:"index"`
	Hash        string    `json:"hash"`        // of the entry at Index, hex
	TimeMs      int64     `json:"time_ms"`     // of that entry, by the database's clock
	Incarnation string    `json:"incarnation"` // 16 hex digits
	WrittenBy   string    `json:"written_by"`  // version of the binary
	Exported    time.Time `json:"exported"`    // by the exporting machine's clock
}

// At is the position that the export stands at.
func (i ExportInfo) At() (Position, error) {
	p := Position{Index: i.Index}
	b, err := hex.DecodeString(i.Hash)
	if err != nil || len(b) != len(p.Hash) || i.Index == 0 {
		return p, fmt.Errorf("export at index %d with hash %q: %w", i.Index, i.Hash, mink.ErrCorrupt)
	}
	copy(p.Hash[:], b)
	return p, nil
}

// FormatIncarnation is an incarnation as people see and type it.
func FormatIncarnation(n uint64) string { return fmt.Sprintf("%016x", n) }

// Export writes the state at the replica's present index. The writer is not synced.
// Errors: mink.ErrNotExist for a log without an entry; the writer's.
func Export(w io.Writer, r *Replica, version string) (ExportInfo, error) {
	v := r.view.Load()
	if v.Index == 0 || v.state.Incarnation() == 0 {
		return ExportInfo{}, fmt.Errorf("export metadata: the log holds no cluster: %w", mink.ErrNotExist)
	}
	info := ExportInfo{
		Index: v.Index, Hash: hex.EncodeToString(v.Hash[:]), TimeMs: v.state.TimeMs(), Incarnation: FormatIncarnation(v.state.Incarnation()),
		WrittenBy: version, Exported: time.Now().UTC().Truncate(time.Second),
	}
	about, err := json.Marshal(info)
	if err != nil {
		return info, err
	}
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<20)
	head := binary.BigEndian.AppendUint32([]byte(exportMagic), exportVersion)
	head = append(binary.BigEndian.AppendUint32(head, uint32(len(about))), about...)
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(head, castagnoli))
	put := func(b []byte) error {
		_, err := out.Write(b)
		return err
	}
	err = put(head)
	for part, perr := range encodeState(v.state) {
		if err = errors.Join(err, perr); err != nil {
			break
		}
		err = errors.Join(put(binary.BigEndian.AppendUint32(nil, uint32(len(part)))), put(part))
	}
	if err = errors.Join(err, put(make([]byte, 4)), out.Flush()); err == nil {
		_, err = w.Write(sum.Sum(nil))
	}
	if err != nil {
		return info, fmt.Errorf("export metadata: %w", err)
	}
	return info, nil
}

// ReadExport reads what Export wrote, whole, and checks all of it. Errors:
// mink.ErrCorrupt; mink.ErrUnsupported (written by a newer version); the reader's.
func ReadExport(r io.Reader) (ExportInfo, *cluster.State, error) {
	e := exportReader{sum: sha256.New(), r: bufio.NewReaderSize(r, 1<<20)}
	info, err := e.head()
	if err != nil {
		return info, nil, fmt.Errorf("read export: %w", err)
	}
	at, err := info.At()
	if err != nil {
		return info, nil, fmt.Errorf("read export: %w", err)
	}
	state, err := cluster.DecodeSnapshot(records(e.parts()))
	if err == nil {
		err = e.end()
	}
	if err == nil && (state.Index() != at.Index || FormatIncarnation(state.Incarnation()) != info.Incarnation) {
		err = fmt.Errorf("it holds the state at %d of incarnation %016x, its head says %d of %s: %w", state.Index(), state.Incarnation(), at.Index, info.Incarnation, mink.ErrCorrupt)
	}
	if err != nil {
		return info, nil, fmt.Errorf("read export at index %d: %w", at.Index, err)
	}
	return info, state, nil
}

type exportReader struct {
	r   *bufio.Reader
	sum hash.Hash
}

func (e *exportReader) take(n int, sum bool) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(e.r, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("it ends early: %w", mink.ErrCorrupt)
		}
		return nil, err
	}
	if sum {
		e.sum.Write(b)
	}
	return b, nil
}

func (e *exportReader) head() (info ExportInfo, err error) {
	fixed, err := e.take(16, true)
	if err != nil {
		return info, err
	}
	version, n := binary.BigEndian.Uint32(fixed[8:]), binary.BigEndian.Uint32(fixed[12:])
	switch {
	case string(fixed[:8]) != exportMagic:
		return info, fmt.Errorf("it does not begin with %s: it is no export of metadata: %w", exportMagic, mink.ErrCorrupt)
	case version != exportVersion:
		return info, fmt.Errorf("it has version %d, this binary reads %d: use a newer mink: %w", version, exportVersion, mink.ErrUnsupported)
	case n > aboutBytesMax:
		return info, fmt.Errorf("a description of %d bytes: %w", n, mink.ErrCorrupt)
	}
	about, err := e.take(int(n), true)
	if err != nil {
		return info, err
	}
	crc, err := e.take(4, true)
	if err != nil {
		return info, err
	}
	if binary.BigEndian.Uint32(crc) != crc32.Checksum(append(bytes.Clone(fixed), about...), castagnoli) {
		return info, fmt.Errorf("the checksum of its head does not match: %w", mink.ErrCorrupt)
	}
	if err := json.Unmarshal(about, &info); err != nil {
		return info, fmt.Errorf("its description: %w: %w", err, mink.ErrCorrupt)
	}
	return info, nil
}

// parts ends after the zero length, or with an error.
func (e *exportReader) parts() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for {
			length, err := e.take(4, true)
			if err != nil {
				yield(nil, err)
				return
			}
			n := binary.BigEndian.Uint32(length)
			if n == 0 {
				return
			}
			if n > PartBytesMax {
				yield(nil, fmt.Errorf("a part of %d bytes: %w", n, mink.ErrCorrupt))
				return
			}
			part, err := e.take(int(n), true)
			if !yield(part, err) || err != nil {
				return
			}
		}
	}
}

func (e *exportReader) end() error {
	want := e.sum.Sum(nil)
	got, err := e.take(len(want), false)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("its checksum does not match: %w", mink.ErrCorrupt)
	}
	switch _, err := e.r.ReadByte(); {
	case err == nil:
		return fmt.Errorf("bytes follow its end: %w", mink.ErrCorrupt)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("what follows its end: %w: %w", mink.ErrCorrupt, err)
	}
	return nil
}

// Restore makes the log go on from an export: Seed, and nothing else. The log's head
// must be replaces.
func Restore(ctx context.Context, log Log, info ExportInfo, state *cluster.State, replaces Position) error {
	at, err := info.At()
	if err != nil {
		return err
	}
	return log.Seed(ctx, Seed{Position: at, TimeMs: state.TimeMs(), Lease: state.Lease().Epoch, Replaces: replaces, Parts: encodeState(state)})
}
