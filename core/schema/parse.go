package schema

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/nearest"
)

// typeWords maps every word that starts a type to its kind; upper case.
var typeWords = map[string]Kind{
	"BOOLEAN": Boolean, "BOOL": Boolean, "TINYINT": TinyInt, "SMALLINT": SmallInt, "INT": Int, "INTEGER": Int,
	"BIGINT": BigInt, "FLOAT": Float, "DOUBLE": Double, "DECIMAL": Decimal, "CHAR": Char, "STRING": String,
	"BINARY": Binary, "BYTES": Bytes, "DATE": Date, "TIME": Time, "TIMESTAMP": Timestamp,
	"TIMESTAMP_LTZ": TimestampLTZ, "ARRAY": Array, "MAP": Map, "ROW": Row,
}

// typeWordList is typeWords in a fixed order, for suggestions.
var typeWordList = kindNames[1:]

// foreignTypes are other systems' names of types, upper case, and ours.
var foreignTypes = map[string]string{
	"VARCHAR": "STRING", "NVARCHAR": "STRING", "VARCHAR2": "STRING", "TEXT": "STRING", "CLOB": "STRING", "UTF8": "STRING",
	"STR": "STRING", "JSON": "STRING", "UUID": "STRING", "CHARACTER": "CHAR",
	"VARBINARY": "BYTES", "BLOB": "BYTES", "BYTEA": "BYTES", "FIXED": "BINARY",
	"BYTE": "TINYINT", "SHORT": "SMALLINT", "LONG": "BIGINT", "INT8": "TINYINT", "INT16": "SMALLINT", "INT32": "INT", "INT64": "BIGINT",
	"REAL": "FLOAT", "FLOAT32": "FLOAT", "FLOAT64": "DOUBLE", "NUMERIC": "DECIMAL", "NUMBER": "DECIMAL",
	"DATETIME": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMP_LTZ", "TIMESTAMP_NTZ": "TIMESTAMP", "STRUCT": "ROW", "RECORD": "ROW", "LIST": "ARRAY",
}

// ParseType reads a type's text, in any case and spacing:
//
//	type   = word [ "(" number [ "," number ] ")" ] [ "<" inner ">" ] [ "NOT NULL" | "NULL" ]
//	inner  = type | type "," type | name type { "," name type }    for ARRAY, MAP, ROW
//	name   = letters, digits, "_", "-", "."  |  "`" anything, "`" doubled "`"
//
// Defaults: DECIMAL is DECIMAL(10,0), CHAR and BINARY have length 1, TIME is
// TIME(0), TIMESTAMP and TIMESTAMP_LTZ have precision 6. BOOL and INTEGER are
// accepted. The result has no field ids. Errors wrap mink.ErrInvalid and say the
// byte position (from 1) and what was expected.
func ParseType(text string) (Type, error) {
	if len(text) > MaxTypeLength {
		return Type{}, fmt.Errorf("%w type: %d bytes of text, at most %d are allowed", mink.ErrInvalid, len(text), MaxTypeLength)
	}
	p := &typeParser{text: text}
	t, err := p.parse(0)
	if err != nil {
		return Type{}, err
	}
	if p.skipSpace(); p.pos < len(p.text) {
		return Type{}, p.expected("the end of the type")
	}
	return t, nil
}

// MustParseType is ParseType for constants in code; it panics on bad text.
func MustParseType(text string) Type {
	t, err := ParseType(text)
	if err != nil {
		panic(err)
	}
	return t
}

type typeParser struct {
	text   string
	pos    int
	fields int
}

func (p *typeParser) errorAt(pos int, format string, args ...any) error {
	shown := p.text
	if len(shown) > 100 {
		shown = strings.ToValidUTF8(shown[:100], "") + "..."
	}
	return fmt.Errorf("%w type %q: position %d: %s", mink.ErrInvalid, shown, pos+1, fmt.Sprintf(format, args...))
}

func (p *typeParser) expected(what string) error {
	p.skipSpace()
	if p.pos >= len(p.text) {
		return p.errorAt(p.pos, "expected %s, found the end", what)
	}
	if w := p.peekWord(); w != "" {
		if len(w) > 40 {
			w = w[:40] + "..."
		}
		return p.errorAt(p.pos, "expected %s, found %q", what, w)
	}
	r, _ := utf8.DecodeRuneInString(p.text[p.pos:])
	return p.errorAt(p.pos, "expected %s, found %q", what, string(r))
}

func (p *typeParser) skipSpace() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *typeParser) peekWord() string {
	end := p.pos
	for end < len(p.text) && bareByte(p.text[end]) {
		end++
	}
	return p.text[p.pos:end]
}

// take consumes one punctuation byte when it is next.
func (p *typeParser) take(c byte) bool {
	p.skipSpace()
	if p.pos < len(p.text) && p.text[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *typeParser) takeWord(upper string) bool {
	p.skipSpace()
	if w := p.peekWord(); strings.EqualFold(w, upper) {
		p.pos += len(w)
		return true
	}
	return false
}

func (p *typeParser) parse(depth int) (Type, error) {
	if depth > MaxTypeDepth {
		return Type{}, p.errorAt(p.pos, "nested more than %d deep", MaxTypeDepth)
	}
	if p.fields++; p.fields > MaxFields {
		return Type{}, p.errorAt(p.pos, "more than %d nested fields", MaxFields)
	}
	p.skipSpace()
	start, word := p.pos, p.peekWord()
	kind, ok := typeWords[strings.ToUpper(word)]
	if !ok {
		if word == "" || len(word) > 40 {
			return Type{}, p.expected("a type such as INT or STRING")
		}
		if ours, ok := foreignTypes[strings.ToUpper(word)]; ok {
			return Type{}, p.errorAt(start, "unknown type %q, here it is %s", word, ours)
		}
		return Type{}, p.errorAt(start, "unknown type %q%s", word, suggest(word, typeWordList))
	}
	p.pos += len(word)
	t := Type{Kind: kind}
	if err := p.arguments(&t); err != nil {
		return Type{}, err
	}
	if err := p.inner(&t, depth); err != nil {
		return Type{}, err
	}
	switch {
	case p.takeWord("NOT"):
		if !p.takeWord("NULL") {
			return Type{}, p.expected("NULL after NOT")
		}
		t.NotNull = true
	case p.takeWord("NULL"): // the default, said aloud
	}
	return t, nil
}

// arguments reads "(p)" or "(p,s)" and fills in defaults.
func (p *typeParser) arguments(t *Type) error {
	switch t.Kind {
	case Decimal:
		t.Precision = 10
	case Char, Binary:
		t.Length = 1
	case Timestamp, TimestampLTZ:
		t.Precision = 6
	}
	if !p.take('(') {
		return nil
	}
	var err error
	switch t.Kind {
	case Decimal:
		if t.Precision, err = p.number("precision of DECIMAL", 1, MaxPrecision); err != nil {
			return err
		}
		if p.take(',') {
			if t.Scale, err = p.number("scale of DECIMAL", 0, t.Precision); err != nil {
				return err
			}
		}
	case Char, Binary:
		if t.Length, err = p.number("length of "+t.Kind.String(), 1, MaxFixedLength); err != nil {
			return err
		}
	case Time, Timestamp, TimestampLTZ:
		if t.Precision, err = p.number("precision of "+t.Kind.String(), 0, MaxTimeDigits); err != nil {
			return err
		}
	default:
		return p.errorAt(p.pos-1, "%s takes no arguments in parentheses", t.Kind)
	}
	if !p.take(')') {
		return p.expected("')'")
	}
	return nil
}

func (p *typeParser) number(what string, low, high int) (int, error) {
	p.skipSpace()
	end := p.pos
	for end < len(p.text) && p.text[end] >= '0' && p.text[end] <= '9' {
		end++
	}
	if end == p.pos {
		return 0, p.expected("a number, the " + what)
	}
	n, err := strconv.Atoi(p.text[p.pos:end])
	if err != nil || n < low || n > high {
		return 0, p.errorAt(p.pos, "%s must be %d to %d", what, low, high)
	}
	p.pos = end
	return n, nil
}

// inner reads what stands between "<" and ">".
func (p *typeParser) inner(t *Type, depth int) error {
	if !t.Nested() {
		return nil
	}
	if !p.take('<') {
		return p.expected("'<' after " + t.Kind.String())
	}
	switch t.Kind {
	case Array:
		elem, err := p.parse(depth + 1)
		if err != nil {
			return err
		}
		*t = ArrayOf(elem)
	case Map:
		key, err := p.parse(depth + 1)
		if err != nil {
			return err
		}
		if !p.take(',') {
			return p.expected("',' between a map's key and value")
		}
		value, err := p.parse(depth + 1)
		if err != nil {
			return err
		}
		*t = MapOf(key, value)
	case Row:
		if err := p.row(t, depth); err != nil {
			return err
		}
	}
	if !p.take('>') {
		return p.expected("'>'")
	}
	return nil
}

func (p *typeParser) row(t *Type, depth int) error {
	seen := map[string]bool{}
	for {
		p.skipSpace()
		at := p.pos
		name, err := p.name()
		if err != nil {
			return err
		}
		if err := CheckColumnName(name); err != nil {
			return p.errorAt(at, "%v", err)
		}
		if seen[name] {
			return p.errorAt(at, "the name %q occurs twice in one ROW", name)
		}
		seen[name] = true
		ft, err := p.parse(depth + 1)
		if err != nil {
			return err
		}
		t.Fields = append(t.Fields, Field{Name: name, Type: ft})
		if !p.take(',') {
			return nil
		}
	}
}

func (p *typeParser) name() (string, error) {
	if !p.take('`') {
		w := p.peekWord()
		if w == "" {
			return "", p.expected("a field name")
		}
		p.pos += len(w)
		return w, nil
	}
	var b strings.Builder
	for {
		i := strings.IndexByte(p.text[p.pos:], '`')
		if i < 0 {
			return "", p.errorAt(p.pos, "expected a closing backtick")
		}
		b.WriteString(p.text[p.pos : p.pos+i])
		if p.pos += i + 1; p.pos >= len(p.text) || p.text[p.pos] != '`' {
			return b.String(), nil
		}
		b.WriteByte('`')
		p.pos++
	}
}

// suggest is `, did you mean "x"?` for the nearest known name, "" when none is near.
func suggest(name string, known []string) string {
	if k, ok := nearest.Close(name, known); ok {
		return fmt.Sprintf(", did you mean %q?", k)
	}
	return ""
}
