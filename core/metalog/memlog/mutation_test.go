package memlog_test

import (
	"testing"

	"github.com/mink-project/mink/core/internal/codefault"
)

// TestNoticesFaultsOfCode: what a deposed lease holder must not do.
func TestNoticesFaultsOfCode(t *testing.T) {
	codefault.MustNotice(t, "../../..", []codefault.Fault{
		{
			Name: "a snapshot by a deposed lease holder", File: "core/metalog/memlog/memlog.go",
			Old: "\tif err := l.checkLeaseLocked(s.Lease); err != nil {\n", New: "\tif err := l.checkLeaseLocked(l.mu.lease); err != nil {\n",
		},
		{
			Name: "a truncation by a deposed lease holder", File: "core/metalog/memlog/memlog.go",
			Old: "\tif err := l.checkLeaseLocked(lease); err != nil {\n\t\treturn fmt.Errorf(\"truncate", New: "\tif err := l.checkLeaseLocked(l.mu.lease); err != nil {\n\t\treturn fmt.Errorf(\"truncate",
		},
	}, "^TestConformance$")
}
