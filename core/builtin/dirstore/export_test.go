package dirstore

import "context"

// Omissions by name, for the tests of the crash test.
var Omissions = map[string]omission{
	"file sync":                      omitFileSync,
	"directory sync of a publish":    omitPublishSync,
	"sync of a new dir's parent":     omitParentSync,
	"sync of a found dir's parent":   omitExistingSync,
	"directory sync of a delete":     omitDeleteSync,
	"sync before showing":            omitReadSync,
	"sync before cleaning leftovers": omitOpenSync,
	"sync of the root's parent":      omitRootSync,
	"second link of an overwrite":    omitSecondLink,
}

// OpenWithout opens a store that leaves out one step.
func OpenWithout(ctx context.Context, cfg Config, o omission) (*Store, error) {
	return open(ctx, cfg, o)
}

// Omission names the type for tests.
type Omission = omission

// Names and their inverse.
var (
	PathOf    = pathOf
	ParseName = func(name string) (key string, kind string, ok bool) {
		e, ok := parseName(name)
		return e.key, e.kind.String(), ok
	}
)
