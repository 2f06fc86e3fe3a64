package main

import (
	"context"
	"testing"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
)

// TestConformance runs the kit in this process: quick, and good with a debugger.
// `mink plugin test` runs it on the executable.
func TestConformance(t *testing.T) {
	catalogtest.Run(t, func(t *testing.T) catalogtest.Target {
		dir := t.TempDir() // an empty place for each check
		return catalogtest.Target{Start: func(context.Context) (catalog.Catalog, error) { return open(dir) }}
	})
}
