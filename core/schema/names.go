package schema

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mink-project/mink/sdk/mink"
)

// CheckName checks the name of a database or table: 1 to 200 of A-Z a-z 0-9
// "_" "-" ".", as Kafka allows for topics; "." and ".." are taken, names that
// start with "__" are reserved. what ("table") goes into the error.
func CheckName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w %s name: it is empty", mink.ErrInvalid, what)
	case len(name) > MaxNameLength:
		return fmt.Errorf("%w %s name %.20q...: %d bytes, at most %d are allowed", mink.ErrInvalid, what, name, len(name), MaxNameLength)
	case name == "." || name == "..":
		return fmt.Errorf("%w %s name %q: choose another", mink.ErrInvalid, what, name)
	case strings.HasPrefix(name, "__"):
		return fmt.Errorf("%w %s name %q: names that start with __ are reserved", mink.ErrInvalid, what, name)
	}
	for i := 0; i < len(name); i++ {
		if !bareByte(name[i]) {
			r, _ := utf8.DecodeRuneInString(name[i:])
			return fmt.Errorf("%w %s name %q: %q is not allowed, only letters, digits, '_', '-' and '.'", mink.ErrInvalid, what, name, r)
		}
	}
	return nil
}

// CheckColumnName checks the name of a column or nested field: 1 to 200 bytes of
// UTF-8 without control characters, because real data has names such as
// "IMDB Rating". Names that start with "__" are reserved.
func CheckColumnName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w column name: it is empty", mink.ErrInvalid)
	case len(name) > MaxNameLength:
		return fmt.Errorf("%w column name %.20q...: %d bytes, at most %d are allowed", mink.ErrInvalid, name, len(name), MaxNameLength)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w column name %q: it is not UTF-8", mink.ErrInvalid, name)
	case strings.HasPrefix(name, "__"):
		return fmt.Errorf("%w column name %q: names that start with __ are reserved", mink.ErrInvalid, name)
	case strings.IndexFunc(name, unicode.IsControl) >= 0:
		return fmt.Errorf("%w column name %q: it has control characters", mink.ErrInvalid, name)
	}
	return nil
}
