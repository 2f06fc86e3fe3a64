package cloudstore

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/mink-project/mink/sdk/objstore"
)

// offsetMax is past the end of any object: no service stores 1 PiB in one. A
// range beyond it is refused without asking, so that no sum overflows.
const offsetMax = 1 << 50

// filledStep is how many bytes lie between two calls of GetRangeRequest.Filled: few
// enough to be copied out of a processor's cache.
const filledStep = 512 << 10

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if err := objstore.ValidateKey(req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	if req.Offset < 0 || req.Offset > offsetMax || req.Length < -1 || req.Length > offsetMax {
		return objstore.GetRangeResponse{}, fmt.Errorf("%w: range [%d, +%d) of %q: no object has it", objstore.ErrInvalid, req.Offset, req.Length, req.Key)
	}
	end, err := s.begin(ctx, "get", req.Key)
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	defer end()
	var resp objstore.GetRangeResponse
	err = s.run(ctx, call{op: "get", key: req.Key}, func(ctx context.Context) (err error) {
		if req.Length == 0 {
			resp, err = s.emptyRange(ctx, req)
			return err
		}
		resp, err = s.getRange(ctx, req)
		return err
	})
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	return resp, nil
}

func (s *Store) getRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	object, err := s.service.Get(ctx, s.prefix+req.Key, req.Offset, req.Length)
	if err != nil {
		if errors.Is(s.service.Explain(err).Class, ErrRange) {
			return s.emptyRange(ctx, req)
		}
		return objstore.GetRangeResponse{}, err
	}
	defer object.Body.Close()
	n, err := req.Resolve(object.Size)
	if err != nil {
		return objstore.GetRangeResponse{}, &classified{objstore.ErrInvalid, err.Error()}
	}
	data, filled := req.Memory(n), req.Filled
	if int64(cap(req.Into)) < n { // it is read elsewhere
		filled = nil
	}
	if got, err := readAll(object.Body, data, filled); err != nil {
		return objstore.GetRangeResponse{}, classify(objstore.ErrUnavailable, "the connection ended after %d of %d bytes (%w)", got, n, err)
	}
	if object.CRC32C != nil && n == object.Size && objstore.Checksum(data) != *object.CRC32C {
		return objstore.GetRangeResponse{}, classify(objstore.ErrCorrupt, "the bytes have crc32c %08x, the service says %08x", objstore.Checksum(data), *object.CRC32C)
	}
	return objstore.GetRangeResponse{Data: data, Size: object.Size, Version: object.Version}, nil
}

// readAll fills data and tells, every filledStep and not at the end, how far it is.
// An attempt before this one may have told of bytes that are read again now.
func readAll(from io.Reader, data []byte, filled func(int64)) (int, error) {
	if filled == nil {
		return io.ReadFull(from, data)
	}
	filled(0)
	for at := 0; ; filled(int64(at)) {
		n, err := io.ReadFull(from, data[at:min(at+filledStep, len(data))])
		if at += n; err != nil || at == len(data) {
			return at, err
		}
	}
}

// ErrRange is the class of a service's refusal of a range that begins at the end
// of the object or after it. It does not leave this package.
var ErrRange = fmt.Errorf("%w: range outside of the object", objstore.ErrInvalid)

// emptyRange answers a range that has, or should have, no bytes: the services
// refuse to open one.
func (s *Store) emptyRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	info, err := s.service.Head(ctx, s.prefix+req.Key)
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	n, err := req.Resolve(info.Size)
	switch {
	case err != nil:
		return objstore.GetRangeResponse{}, &classified{objstore.ErrInvalid, err.Error()}
	case n > 0:
		return objstore.GetRangeResponse{}, classify(objstore.ErrUnavailable, "the object was replaced by a larger one meanwhile")
	}
	return objstore.GetRangeResponse{Data: req.Memory(0), Size: info.Size, Version: info.Version}, nil
}
