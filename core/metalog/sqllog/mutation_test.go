package sqllog_test

import (
	"testing"

	"github.com/mink-project/mink/core/internal/codefault"
)

// TestNoticesFaultsOfCode: what a deposed lease holder must not do. SQLite and Postgres
// share the code.
func TestNoticesFaultsOfCode(t *testing.T) {
	codefault.MustNotice(t, "../../..", []codefault.Fault{
		{ // looked at before the parts, with each of them and in the end
			Name: "a snapshot by a deposed lease holder", File: "core/metalog/sqllog/lease.go",
			Old: "\tif want.Epoch == 0 || have.Epoch != want.Epoch ||", New: "\tif want.Epoch == 0 && have.Epoch != want.Epoch &&",
		},
		{
			Name: "a truncation by a deposed lease holder", File: "core/metalog/sqllog/snapshot.go",
			Old: "\t\t\tif err := checkLease(ctx, q, lease); err != nil {\n", New: "\t\t\tif err := error(nil); err != nil {\n",
		},
	}, "^TestSQLiteConformance$")
}
