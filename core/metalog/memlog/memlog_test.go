package memlog_test

import (
	"testing"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/core/metalog/metalogtest"
)

func TestConformance(t *testing.T) {
	metalogtest.Run(t, metalogtest.Options{
		Open: func(*testing.T) metalog.Log { return memlog.New() },
	})
}
