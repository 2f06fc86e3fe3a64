package hosttest

import (
	"context"
	"strings"
	"sync"

	"github.com/mink-project/mink/sdk/objstore"
)

// badStore misbehaves; a lying one by the last segment of the key.
type badStore struct {
	objstore.Store
	behaviour string

	mu   sync.Mutex
	held [][]byte
}

func (s *badStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	switch s.behaviour {
	case "leak":
		b := make([]byte, 32<<20)
		for i := range b {
			b[i] = byte(i)
		}
		s.mu.Lock()
		s.held = append(s.held, b)
		s.mu.Unlock()
	case "stuck":
		select {}
	case "panics":
		panic("the store's author did not think of this")
	}
	return s.Store.Put(ctx, req)
}

func (s *badStore) Close() error {
	if s.behaviour == "stuck" {
		select {}
	}
	return s.Store.Close()
}

func (s *badStore) GetRange(_ context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	data := make([]byte, 100)
	switch req.Key {
	case "short":
		return objstore.GetRangeResponse{Data: data[:9], Size: 100}, nil
	case "long":
		return objstore.GetRangeResponse{Data: data, Size: 100}, nil
	case "small":
		return objstore.GetRangeResponse{Data: data[:10], Size: 5}, nil
	case "negative":
		return objstore.GetRangeResponse{Data: data[:10], Size: -1}, nil
	}
	return objstore.GetRangeResponse{Data: data[:10], Size: 100}, nil
}

func (s *badStore) Head(_ context.Context, key string) (objstore.ObjectInfo, error) {
	if key == "negative" {
		return objstore.ObjectInfo{Key: key, Size: -1}, nil
	}
	return objstore.ObjectInfo{Key: "another"}, nil
}

func (s *badStore) List(_ context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	object := func(key string) objstore.ObjectInfo { return objstore.ObjectInfo{Key: key} }
	switch req.Prefix {
	case "order":
		return objstore.ListResponse{Objects: []objstore.ObjectInfo{object("order/2"), object("order/1")}}, nil
	case "again":
		return objstore.ListResponse{Objects: []objstore.ObjectInfo{object("again/1")}, More: true}, nil
	case "elsewhere":
		return objstore.ListResponse{Objects: []objstore.ObjectInfo{object("x")}}, nil
	case "empty":
		return objstore.ListResponse{More: true}, nil
	case "many":
		objects := make([]objstore.ObjectInfo, 5000)
		for i := range objects {
			objects[i] = object("many/" + strings.Repeat("x", i/10) + string(rune('a'+i%10)))
		}
		return objstore.ListResponse{Objects: objects}, nil
	case "huge":
		return objstore.ListResponse{Objects: []objstore.ObjectInfo{{Key: "huge/1", Version: strings.Repeat("v", 64<<20)}}}, nil
	case "latin": // not UTF-8
		return objstore.ListResponse{Objects: []objstore.ObjectInfo{object("latin/\xff")}}, nil
	}
	return objstore.ListResponse{}, nil
}

func (s *badStore) DeleteBatch(_ context.Context, keys []string) (objstore.DeleteResponse, error) {
	return objstore.DeleteResponse{Errors: make([]error, len(keys)+1)}, nil
}
