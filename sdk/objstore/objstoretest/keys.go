package objstoretest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/objstore"
)

func keyChecks() []Check {
	return []Check{
		{"InvalidKeys", checkInvalidKeys},
		{"HostileKeys", checkHostileKeys},
		{"KeyPrefixOfKey", checkKeyPrefixOfKey},
		{"CaseSensitive", checkCaseSensitive},
		{"ListEmpty", checkListEmpty},
		{"ListAgainstModel", checkListAgainstModel},
		{"ListInfo", checkListInfo},
		{"ListRequests", checkListRequests},
	}
}

func checkInvalidKeys(t T, s objstore.Store) {
	ctx := t.Context()
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b", "../a", "a/..", "./a",
		"a\x00b", "a\nb", "a\x7f", "a\xffb", "\xc3", "a\\b", "a\ufffeb", "a\uffff",
		strings.Repeat("k", objstore.KeyMax+1),
	} {
		_, err := s.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{[]byte("x")}})
		wantIs(t, err, objstore.ErrInvalid, "put %q", key)
		_, err = s.GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
		wantIs(t, err, objstore.ErrInvalid, "get %q", key)
		_, err = s.Head(ctx, key)
		wantIs(t, err, objstore.ErrInvalid, "head %q", key)
		resp, err := s.DeleteBatch(ctx, []string{key})
		if err != nil || len(resp.Errors) != 1 {
			t.Fatalf("delete %q: %v, %v: want an error in the key's slot", key, resp, err)
		}
		wantIs(t, resp.Errors[0], objstore.ErrInvalid, "delete %q", key)
	}
	wantKeys(t, s, "", "", 0, []string{})
}

// HostileKeys are valid keys that tempt a store to mix them up: with each other,
// with its own files, or with something outside it.
func HostileKeys() []string {
	keys := []string{
		"a", "a!", "a/b", "a/b/c", "a0", "A", "A/b", "aB", "ab", "a.b", "a.b/c", "a-b",
		"...", "..a", ".hidden", ".hidden/x", "x/.y", "trail.", "trail ", " lead", "two  spaces",
		"%", "%41", "%61", "%2F", "%2f", "a%2Fb", "%tmp", "%tmp/x", "%format", "%00",
		"~", "a~", "a~/b", "a.b~", "+", "a+", "a+/b", "$x", "`id`", "$(id)", "*", "?", "a?b#c&d=e;f", "\"quoted\"", "'q'", "<x>|:",
		"con", "nul.txt", "LOCK", "x.lock", "x.tmp", ".tmp", "tmp/x", "lost+found", "-rf", "--", "_", "__meta", "=", "dt=2026-01-01/x.parquet",
		"\u00fc", "u\u0308", "\u65e5\u672c/\u8a9e", "\U0001f9a6", "\u00df", "ss", "\u017f", "\u212a", "k", "K", "\u200b", "\u202ex",
		strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("X", 300),
		strings.Repeat("y", objstore.KeyMax), strings.Repeat("\u00fc", objstore.KeyMax/2),
		strings.Repeat("a/", objstore.KeyMax/2-1) + "a", strings.Repeat("%/", 300) + "%",
	}
	for _, n := range []int{63, 64, 79, 80, 81, 128, 160} { // around places where a long segment may be cut
		stem := strings.Repeat("s", n)
		keys = append(keys, stem, stem+"/x", stem+"!", stem+"\u00fc", stem+".x/y", stem+"0")
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func checkHostileKeys(t T, s objstore.Store) {
	keys := HostileKeys()
	for _, k := range keys {
		if err := create(t.Context(), s, k, []byte("value of "+k)); err != nil {
			t.Fatalf("create %q: %v", k, err)
		}
	}
	for _, k := range keys {
		wantValue(t, s, k, []byte("value of "+k))
		info, err := s.Head(t.Context(), k)
		if err != nil || info.Key != k {
			t.Fatalf("head %q: %+v, %v", k, info, err)
		}
	}
	wantKeys(t, s, "", "", 0, keys)
	for i := 0; i < len(keys); i += 3 {
		wantKeys(t, s, "", keys[i], 0, keys[i+1:])
		under := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !strings.HasPrefix(k, keys[i]) })
		wantKeys(t, s, keys[i], "", 0, under)
	}
	var rest []string
	for i, k := range keys {
		if i%2 == 0 {
			deleteOne(t, s, k)
		} else {
			rest = append(rest, k)
		}
	}
	wantKeys(t, s, "", "", 0, rest)
	for _, k := range rest {
		wantValue(t, s, k, []byte("value of "+k))
	}
}

func checkKeyPrefixOfKey(t T, s objstore.Store) {
	keys := []string{"p", "p/q", "p/q/r"}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		for _, i := range order {
			mustPut(t, s, keys[i], []byte(keys[i]))
		}
		for _, k := range keys {
			wantValue(t, s, k, []byte(k))
		}
		wantKeys(t, s, "", "", 0, keys)
		for _, i := range order {
			deleteOne(t, s, keys[i])
		}
		wantKeys(t, s, "", "", 0, []string{})
	}
}

func checkCaseSensitive(t T, s objstore.Store) {
	for _, k := range []string{"Key", "key", "KEY", "dir/x", "Dir/x"} {
		if err := create(t.Context(), s, k, []byte(k)); err != nil {
			t.Fatalf("create %q beside its other spellings: %v", k, err)
		}
	}
	wantKeys(t, s, "", "", 0, []string{"Dir/x", "KEY", "Key", "dir/x", "key"})
	wantValue(t, s, "Key", []byte("Key"))
}

func checkListEmpty(t T, s objstore.Store) {
	wantKeys(t, s, "", "", 0, []string{})
	wantKeys(t, s, "no/such/prefix", "no/such/prefix/after", 3, []string{})
}

// checkListAgainstModel compares with a sorted slice, for a set of keys whose
// order is easily got wrong: '!' sorts before '/', '0' after.
func checkListAgainstModel(t T, s objstore.Store) {
	rng := rand.New(rand.NewPCG(3, 3))
	letters := []string{"a", "b", "A", "!", "0", "/", "/", ".", "\u00fc", "~"}
	word := func() string {
		var b strings.Builder
		for range 1 + rng.IntN(6) {
			b.WriteString(letters[rng.IntN(len(letters))])
		}
		return b.String()
	}
	model := map[string]bool{}
	for len(model) < 80 {
		if k := word(); objstore.ValidateKey(k) == nil && !model[k] {
			mustPut(t, s, k, []byte(k))
			model[k] = true
		}
	}
	keys := sortedKeys(model)
	for i := range 150 {
		prefix, after := "", ""
		if i%3 != 0 {
			prefix = keys[rng.IntN(len(keys))]
			prefix = prefix[:rng.IntN(len(prefix)+1)] // may cut a character in two
		}
		switch i % 4 {
		case 1:
			after = word()
		case 2:
			after = keys[rng.IntN(len(keys))]
		case 3:
			after = prefix + word()
		}
		var want []string
		for _, k := range keys {
			if strings.HasPrefix(k, prefix) && k > after {
				want = append(want, k)
			}
		}
		wantKeys(t, s, prefix, after, []int{0, 1, 2, 7, 1 << 30}[rng.IntN(5)], want)
	}
}

func sortedKeys(m map[string]bool) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func checkListInfo(t T, s objstore.Store) {
	for i := range 5 {
		mustPut(t, s, fmt.Sprintf("o/%d", i), make([]byte, i*1000))
	}
	n := 0
	err := objstore.All(t.Context(), s, "o/", "", func(o objstore.ObjectInfo) bool {
		head, err := s.Head(t.Context(), o.Key)
		if err != nil {
			t.Fatalf("head %q: %v", o.Key, err)
		}
		if o.Size != int64(n*1000) || o.Size != head.Size || o.Version != head.Version || !o.Modified.Equal(head.Modified) {
			t.Fatalf("list says %+v, head %+v", o, head)
		}
		n++
		return true
	})
	if err != nil || n != 5 {
		t.Fatalf("%d objects, %v", n, err)
	}
}

func checkListRequests(t T, s objstore.Store) {
	_, err := s.List(t.Context(), objstore.ListRequest{Limit: -1})
	wantIs(t, err, objstore.ErrInvalid, "limit -1")
	for i := range 5 {
		mustPut(t, s, fmt.Sprint("k", i))
	}
	limit := min(3, s.Capabilities().ListPageMax)
	page, err := s.List(t.Context(), objstore.ListRequest{Limit: limit})
	if err != nil || len(page.Objects) != limit || !page.More {
		t.Fatalf("limit %d of 5: %d keys, more %v, %v", limit, len(page.Objects), page.More, err)
	}
	page, err = s.List(t.Context(), objstore.ListRequest{StartAfter: "k4"})
	if err != nil || len(page.Objects) != 0 || page.More {
		t.Fatalf("after the last key: %d keys, more %v, %v", len(page.Objects), page.More, err)
	}
}

func deleteOne(t T, s objstore.Store, key string) {
	t.Helper()
	resp, err := s.DeleteBatch(t.Context(), []string{key})
	if err != nil || len(resp.Errors) != 1 || resp.Errors[0] != nil {
		t.Fatalf("delete %q: %v, %v", key, resp.Errors, err)
	}
}
