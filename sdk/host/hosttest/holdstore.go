package hosttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/mink-project/mink/sdk/objstore"
)

// Hold stops a "hold" plugin at its next Put of a kind: a process that is killed then
// ends at a known point. Further Puts of the kind wait as well.
type Hold struct {
	Prefix string // of the key
	Begins string // what the object begins with
	After  bool   // the object is on the store, its answer is held back
}

// SetHold tells the plugin that serves hold://dir.
func SetHold(t testing.TB, dir string, h Hold) {
	t.Helper()
	data, err := json.Marshal(h)
	if err == nil {
		err = replaceFile(holdFile(dir), data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Held answers the key of the Put that is held; "": none is.
func Held(t testing.TB, dir string) string {
	t.Helper()
	key, err := os.ReadFile(heldFile(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(key)
}

// EndHold lets the next process of the plugin serve. That which holds a Put answers
// it with an error.
func EndHold(t testing.TB, dir string) {
	t.Helper()
	for _, path := range []string{holdFile(dir), heldFile(dir)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// The files lie beside the directory: what is below it are objects.
func holdFile(dir string) string { return dir + ".hold" }
func heldFile(dir string) string { return dir + ".held" }

// holdStore is without multipart uploads.
type holdStore struct {
	objstore.Store
	dir string

	mu   sync.Mutex
	held bool
}

func (s *holdStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	data, err := os.ReadFile(holdFile(s.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return s.Store.Put(ctx, req)
	}
	var h Hold
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	switch {
	case err != nil:
		return objstore.PutResponse{}, err
	case !strings.HasPrefix(req.Key, h.Prefix) || !bytes.HasPrefix(bytes.Join(req.Chunks, nil), []byte(h.Begins)):
		return s.Store.Put(ctx, req)
	}
	s.mu.Lock()
	first := !s.held
	s.held = true
	s.mu.Unlock()
	if first && h.After {
		_, err = s.Store.Put(ctx, req)
	}
	if first && err == nil {
		err = replaceFile(heldFile(s.dir), []byte(req.Key))
	}
	if err != nil {
		return objstore.PutResponse{}, err
	}
	<-ctx.Done()
	return objstore.PutResponse{}, context.Cause(ctx)
}

// replaceFile never shows a part of it.
func replaceFile(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (s *holdStore) Capabilities() objstore.Capabilities {
	c := s.Store.Capabilities()
	c.PartSizeMin, c.PartSizeMax = 0, 0
	return c
}
