package lake

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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

	once  sync.Once
	whole []byte // of a small file, once something was read
	err   error  // of reading it
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
	if f.info.Size <= wholeMax {
		if readErr := f.readWhole(); readErr != nil {
			return 0, readErr
		}
		return copy(p, f.whole[offset:offset+n]), err
	}
	got, readErr := f.get(objstore.GetRangeRequest{Key: f.info.Key, Offset: offset, Length: n, Into: p[:n:n]})
	if readErr != nil {
		return 0, readErr
	}
	return copy(p, got.Data), err
}

func (f *file) readWhole() error {
	f.once.Do(func() {
		got, err := f.get(objstore.GetRangeRequest{Key: f.info.Key, Length: f.info.Size})
		f.whole, f.err = got.Data, err
	})
	return f.err
}

func (f *file) get(req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	got, err := f.files.store.GetRange(f.files.ctx, req)
	if err != nil {
		return got, pathError("read", f.location, err)
	}
	return got, nil
}
