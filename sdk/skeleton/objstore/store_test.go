package main

import (
	"testing"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

// TestConformance runs the kit in this process: quick, and good with a debugger.
// `mink plugin test` runs it on the executable.
func TestConformance(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		s, err := open("skeleton://bucket/" + t.Name()) // an empty place for each check
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
