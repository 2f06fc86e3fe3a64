package sqllog_test

import (
	"testing"

	"github.com/mink-project/mink/core/internal/codefault"
)

// TestNoticesFaultsOfCode: what a deposed lease holder must not do. SQLite and Postgres
// share the code.
func TestNoticesFaultsOfCode(t *testing.T) {
	codefault.MustNotice(t, "../../..", []codefault.Fault{
		{
			Name: "a snapshot by a deposed lease holder", File: "core/metalog/sqllog/snapshot.go",
			Old: "\tif err := checkLease(ctx, q, s.Lease); err != nil {\n", New: "\tif err := error(nil); err != nil {\n",
		},
		{
			Name: "the end of a snapshot by a holder that was deposed meanwhile", File: "core/metalog/sqllog/snapshot.go",
			Old: "func(q querier) error { return checkLease(ctx, q, s.Lease) })\n", New: "func(querier) error { return nil })\n",
		},
		{
			Name: "a truncation by a deposed lease holder", File: "core/metalog/sqllog/snapshot.go",
			Old: "\t\t\tif err := checkLease(ctx, q, lease); err != nil {\n", New: "\t\t\tif err := error(nil); err != nil {\n",
		},
	}, "^TestSQLiteConformance$")
}
