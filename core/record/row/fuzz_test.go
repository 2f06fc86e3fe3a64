package row

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

// everything has a column of each shape, and a list of each.
func everything(t testing.TB, id mink.SchemaID, wide bool) *schema.Schema {
	if wide {
		return table(t, id, "a SMALLINT", "b BOOLEAN", "c STRING", "d BYTES", "e BINARY(19)", "f BINARY(19)", "g DECIMAL(38,2)", "h TIMESTAMP(9)", "i ARRAY<BIGINT>", "j ARRAY<BINARY(65535)>",
			"k MAP<STRING, ARRAY<STRING>>", "l ROW<x BIGINT, y ROW<z STRING, w ARRAY<BOOLEAN>>>", "m ARRAY<ROW<p BINARY(40), q DOUBLE>>", "n TIME(3)")
	}
	return table(t, id, "a TINYINT", "b BOOLEAN", "c CHAR(3)", "d BYTES", "e BINARY(2)", "f BINARY(18)", "g DECIMAL(9,2)", "h TIMESTAMP(0)", "i ARRAY<INT>", "j ARRAY<BINARY(65535)>",
		"k MAP<STRING, ARRAY<STRING>>", "l ROW<x INT, y ROW<z STRING, w ARRAY<BOOLEAN>>>", "m ARRAY<ROW<p BINARY(17), q FLOAT>>", "n TIME(0)")
}

const everyJSON = `{"a": 1, "b": true, "c": "abc", "d": "/w==", "e": "AQI=", "f": "AQIDBAUGBwgJCgsMDQ4PEBES", "g": "1.25", "h": "2020-01-01 00:00:00", "i": [1, null, 3], "j": [null],
	"k": [{"key": "k", "value": ["v", null]}, {"key": "l", "value": null}], "l": {"x": 3, "y": {"z": "z", "w": [true, null]}}, "m": [{"p": null, "q": 1.5}, null], "n": "00:00:01"}`

// decodes tries everything that reads a row. Whatever Check accepts comes back from
// Arrow with the same bytes; whatever it refuses breaks nothing.
func decodes(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, c *Codec, u *Upgrader, value []byte) bool {
	known := func(err error) bool {
		return errors.Is(err, mink.ErrCorrupt) || errors.Is(err, mink.ErrInvalid) || errors.Is(err, mink.ErrTooLarge)
	}
	checked := c.Check(value)
	if checked != nil && !known(checked) {
		t.Fatal(checked)
	}
	b, err := c.Builder(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append(value); err != nil && (checked == nil || !known(err)) {
		t.Fatalf("Check says %v, Append %v", checked, err)
	} else if err != nil && b.Len() != 0 {
		t.Fatal("a refused row was added")
	}
	rec := b.NewBatch()
	newer, err := u.Append(nil, value)
	if err != nil && !known(err) && !errors.Is(err, mink.ErrOutOfRange) {
		t.Fatal(err)
	}
	if checked != nil {
		return false
	}
	if again := encodeAll(t, c, rec); !bytes.Equal(again[0], value) {
		t.Fatalf("%x comes back as %x", value, again[0])
	}
	if err == nil {
		if err := u.to.Check(newer); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

func fixture(t testing.TB) (*Codec, *Upgrader, []byte) {
	s := everything(t, 1, false)
	c := codec(t, s)
	u, err := NewUpgrader(s, everything(t, 2, true))
	if err != nil {
		t.Fatal(err)
	}
	return c, u, encodeAll(t, c, batch(t, s, "["+everyJSON+"]"))[0]
}

func FuzzDecode(f *testing.F) {
	c, u, value := fixture(f)
	f.Add(value)
	empty := c.Compose(nil)
	f.Add(empty.Done())
	f.Fuzz(func(t *testing.T, value []byte) { decodes(t, c, u, value) })
}

// Every cut, and every changed byte, is refused or is a row; most are refused.
func TestDamaged(t *testing.T) {
	c, u, value := fixture(t)
	if !decodes(t, c, u, value) {
		t.Fatal(c.Check(value))
	}
	for n := range value {
		if decodes(t, c, u, value[:n]) {
			t.Errorf("the first %d bytes pass for a row", n)
		}
	}
	accepted, tried := 0, 0
	for i := range value {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(value)
			bad[i] ^= flip
			tried++
			if decodes(t, c, u, bad) {
				accepted++
			}
		}
	}
	if accepted == tried || accepted == 0 {
		t.Errorf("%d of %d accepted", accepted, tried)
	}
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(value)
		for range rapid.IntRange(1, 4).Draw(t, "edits") {
			bad[rapid.IntRange(2, len(bad)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		decodes(t, c, u, bad)
	})
}

// A few bytes that say "a million nulls of 64 KiB" get no memory.
func TestExpansion(t *testing.T) {
	s := table(t, 1, "a ARRAY<BINARY(65535)>")
	c := codec(t, s)
	many := func(n int) []byte {
		w := c.Compose(nil)
		list := binary.AppendUvarint(nil, uint64(n))
		list = appendZeros(list, (n+7)/8)
		for i := range n {
			list[len(binary.AppendUvarint(nil, uint64(n)))+i>>3] |= 1 << (i & 7)
		}
		list = appendZeros(append(list, 2), 2*n)
		w.Set(0, list)
		return w.Done()
	}
	if err := c.Check(many(1000)); err != nil {
		t.Error(err)
	}
	b, err := c.Builder(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{c.Check(many(20_000)), b.Append(many(20_000))} {
		if !errors.Is(err, mink.ErrTooLarge) {
			t.Error(err)
		}
	}
}

// A row has one form: ends have 4 bytes when 2 cannot say them, and only then.
func TestOneForm(t *testing.T) {
	s := table(t, 1, "a STRING")
	c := codec(t, s)
	for n, w := range map[int]byte{0: 2, 65535: 2, 65536: 4} {
		value := c.Compose(nil)
		value.Set(0, bytes.Repeat([]byte("x"), n))
		if b := value.Done(); b[2] != w || c.Check(b) != nil {
			t.Errorf("%d bytes: ends of %d bytes, %v", n, b[2], c.Check(b))
		}
	}
	list := codec(t, table(t, 1, "a ARRAY<INT>"))
	for name, bad := range map[string]struct {
		c     *Codec
		value []byte
	}{
		"wide ends of a short row": {c, []byte{1, 1, 4, 0, 1, 0, 0, 0, 'x'}},
		"a count in two bytes":     {list, []byte{1, 1, 2, 0, 2, 0, 0x80, 0}},
	} {
		if err := bad.c.Check(bad.value); !errors.Is(err, mink.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := list.Check([]byte{1, 1, 2, 0, 1, 0, 0}); err != nil {
		t.Error(err)
	}
}

// Nor do elements that a later version of the table made longer.
func TestUpgradeExpansion(t *testing.T) {
	from, to := table(t, 1, "a ARRAY<BINARY(17)>"), table(t, 2, "a ARRAY<BINARY(65535)>")
	u, err := NewUpgrader(from, to)
	if err != nil {
		t.Fatal(err)
	}
	some := func(n int) []byte {
		list := appendZeros(binary.AppendUvarint(nil, uint64(n)), (n+7)/8)
		flag := len(list)
		list, e := openEnds(append(list, 0), flag, n)
		for range n {
			list = e.end(appendZeros(list, 17))
		}
		w := u.from.Compose(nil)
		w.Set(0, list)
		return w.Done()
	}
	if _, err := u.Append(nil, some(10)); err != nil {
		t.Error(err)
	}
	limit := writer{limit: 1 << 20}
	r, err := u.from.Row(some(100))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limit.record(nil, u.to.rec, u.columns, r); !errors.Is(err, mink.ErrTooLarge) {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	s := table(t, 2, "a INT", "b STRING")
	c := codec(t, s)
	good := encodeAll(t, c, batch(t, s, `[{"a": 1, "b": "x"}]`))[0]
	older := encodeAll(t, codec(t, table(t, 1, "a INT", "b STRING")), batch(t, s, `[{"a": 1, "b": "x"}]`))[0]
	for name, c2 := range map[string]struct {
		value []byte
		want  error
	}{
		"empty": {nil, mink.ErrCorrupt}, "another format": {append([]byte{2}, good[1:]...), mink.ErrCorrupt}, "another version": {older, mink.ErrInvalid},
		"no id": {[]byte{1, 0}, mink.ErrCorrupt}, "id in too many bytes": {[]byte{1, 0x82, 0, 0}, mink.ErrCorrupt}, "more bytes": {append(bytes.Clone(good), 0), mink.ErrCorrupt},
	} {
		if _, err := c.Row(c2.value); !errors.Is(err, c2.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewCodec(table(t, 0, "a INT")); err != nil { // Normalize made it 1
		t.Error(err)
	}
	if _, err := NewCodec(&schema.Schema{}); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
	if err := c.Encoder().Bind(make([]arrow.Array, 3)); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
}
