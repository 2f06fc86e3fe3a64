package dirstore_test

import (
	"testing"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

func openIn(t testing.TB, dir string) *dirstore.Store {
	t.Helper()
	s, err := dirstore.Open(t.Context(), dirstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return openIn(t, t.TempDir()) })
}
