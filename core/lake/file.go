package lake

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"github.com/mink-project/mink/sdk/objstore"
)

// file is an open file. ReadAt may be called by several goroutines at once, the
// rest by one.
type file struct {
	files    *BoundFiles
	location string
	info     objstore.ObjectInfo
	at       int64 // of Read and Seek

	entire bool // read whole whatever its size
	once   sync.Once
	whole  []byte // of a small file, once something was read
	err    error  // of reading it

	mu     sync.Mutex
	blocks []*block // the one used last at the end
}

func (f *file) Stat() (fs.FileInfo, error) { return fileInfo{f.info}, nil }

func (f *file) Close() error { return nil }

func (f *file) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.at)
	f.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (f *file) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.info.Size
	}
	if offset < 0 {
		return 0, pathError("seek", f.location, fmt.Errorf("%w: to %d", objstore.ErrInvalid, offset))
	}
	f.at = offset
	return offset, nil
}

// ReadAt reads as io.ReaderAt does.
func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	switch {
	case offset < 0:
		return 0, pathError("read", f.location, fmt.Errorf("%w: offset %d", objstore.ErrInvalid, offset))
	case len(p) == 0:
		return 0, nil
	case offset >= f.info.Size:
		return 0, io.EOF
	}
	n := min(int64(len(p)), f.info.Size-offset)
	var err error
	if n < int64(len(p)) {
		err = io.EOF
	}
	switch {
	case f.entire || f.info.Size <= wholeMax:
		if readErr := f.readWhole(); readErr != nil {
			return 0, readErr
		}
		return copy(p, f.whole[offset:offset+n]), err
	case f.files.local || n >= blockBytes:
		got, readErr := f.get(objstore.GetRangeRequest{Key: f.info.Key, Offset: offset, Length: n, Into: p[:n:n]})
		if readErr != nil {
			return 0, readErr
		}
		return copy(p, got.Data), err
	}
	for done := int64(0); done < n; {
		block, readErr := f.block((offset + done) / blockBytes)
		if readErr != nil {
			return int(done), readErr
		}
		done += int64(copy(p[done:n], block[(offset+done)%blockBytes:]))
	}
	return int(n), err
}

// A Parquet file is read a column chunk at a time, and the chunks of narrow columns are
// small: over a network they are read as blocks, of which the last few are kept.
const (
	blockBytes = 2 << 20
	blocksMax  = 4
)

type block struct {
	index int64
	once  sync.Once
	data  []byte
	err   error
}

func (f *file) block(index int64) ([]byte, error) {
	f.mu.Lock()
	i := slices.IndexFunc(f.blocks, func(b *block) bool { return b.index == index })
	var b *block
	if i >= 0 {
		b = f.blocks[i]
		f.blocks = slices.Delete(f.blocks, i, i+1)
	} else {
		b = &block{index: index}
		if len(f.blocks) == blocksMax {
			f.blocks = slices.Delete(f.blocks, 0, 1)
		}
	}
	f.blocks = append(f.blocks, b)
	f.mu.Unlock()
	b.once.Do(func() {
		offset := index * blockBytes
		got, err := f.get(objstore.GetRangeRequest{Key: f.info.Key, Offset: offset, Length: min(blockBytes, f.info.Size-offset)})
		b.data, b.err = got.Data, err
	})
	if b.err != nil { // the next read asks again
		f.mu.Lock()
		f.blocks = slices.DeleteFunc(f.blocks, func(o *block) bool { return o == b })
		f.mu.Unlock()
	}
	return b.data, b.err
}

func (f *file) readWhole() error {
	f.once.Do(func() {
		got, err := f.get(objstore.GetRangeRequest{Key: f.info.Key, Length: f.info.Size})
		f.whole, f.err = got.Data, err
	})
	return f.err
}

func (f *file) get(req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	got, err := f.files.get(f.files.ctx, req)
	if err != nil {
		return got, pathError("read", f.location, err)
	}
	return got, nil
}
