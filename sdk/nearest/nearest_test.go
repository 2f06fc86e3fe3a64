package nearest

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestClose(t *testing.T) {
	for _, c := range []struct{ name, want, known string }{
		{"tabel", "table", "mode table"},
		{"nmae", "name", "id name"},
		{"BIGNIT", "BIGINT", "INT BIGINT BINARY"},
		{"createtime", "CreateTime", "LogAppendTime CreateTime"},
		{"retention", "retention.ms", "log_ttl retention.ms"},
		{"order", "orders", "days orders"},
		{"log_tl", "log_ttl", "log_max_bytes log_ttl"},
		{"nope", "", "words clicks"},
		{"VARCHAR", "", "CHAR INT STRING"},
		{"zzz", "", "mode table"},
		{"x", "", "id name"},
		{"", "", "id"},
		{strings.Repeat("a", 300), "", "aaa"},
		{"a", "", ""},
	} {
		got, ok := Close(c.name, strings.Fields(c.known))
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%.20q of %s: %q, want %q", c.name, c.known, got, c.want)
		}
	}
	if got := Of("nope", []string{"words", "node"}); got != "node" {
		t.Errorf("of two far ones the nearer: %q", got)
	}
	if got := Of(strings.Repeat("a", 9999), []string{"b", "aa"}); got != "aa" {
		t.Errorf("of a long name: %q", got)
	}
	if got := Of("x", nil); got != "" {
		t.Errorf("of none: %q", got)
	}
}

// The row-wise distance is the definition's.
func TestDistance(t *testing.T) {
	var slow func(a, b string) int
	slow = func(a, b string) int {
		if a == "" || b == "" {
			return len(a) + len(b)
		}
		same := 1
		if a[0] == b[0] {
			same = 0
		}
		d := min(slow(a[1:], b[1:])+same, slow(a[1:], b)+1, slow(a, b[1:])+1)
		if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
			d = min(d, slow(a[2:], b[2:])+1)
		}
		return d
	}
	word := rapid.StringMatching("[ab]{0,6}")
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		if got, want := distance(a, b, 100), slow(a, b); got != want {
			t.Fatalf("%q and %q: %d, want %d", a, b, got, want)
		}
	})
}
