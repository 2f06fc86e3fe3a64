package predicate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"

	"github.com/mink-project/mink/sdk/mink"
)

// Bounds of a filter's text.
const (
	MaxTextBytes = 64 << 10
	MaxDepth     = 64 // parentheses inside one another
)

// Expr is a filter that was read and belongs to no table yet. Immutable.
type Expr struct {
	text string
	root *orTerm
}

// String is the text it was read from.
func (e *Expr) String() string { return e.text }

type orTerm struct {
	Terms []*andTerm `parser:"@@ ( 'OR' @@ )*"`
}

type andTerm struct {
	Terms []*notTerm `parser:"@@ ( 'AND' @@ )*"`
}

type notTerm struct {
	Not       []string   `parser:"@'NOT'*"`
	Sub       *orTerm    `parser:"( '(' @@ ')'"`
	Condition *condition `parser:"| @@ )"`
}

type condition struct {
	Column  string       `parser:"@( Ident | Quoted )"`
	Compare *compareTerm `parser:"( @@"`
	Null    *nullTerm    `parser:"| @@"`
	Not     bool         `parser:"| ( @'NOT'?"`
	In      []*literal   `parser:"    ( 'IN' '(' @@ ( ',' @@ )* ')'"`
	Between *betweenTerm `parser:"    | @@ ) ) )"`
}

type compareTerm struct {
	Op    string   `parser:"@( '<' '>' | '<' '=' | '>' '=' | '!' '=' | '=' | '<' | '>' )"`
	Value *literal `parser:"@@"`
}

type nullTerm struct {
	Is  string `parser:"@'IS'"`
	Not bool   `parser:"@'NOT'? 'NULL'"`
}

type betweenTerm struct {
	Low  *literal `parser:"'BETWEEN' @@"`
	High *literal `parser:"'AND' @@"`
}

type literal struct {
	Type   string `parser:"( @Ident?"` // DATE, TIME, TIMESTAMP
	Text   string `parser:"  @String"`
	Number string `parser:"| @Number"`
	Bytes  string `parser:"| @Hex"`
	Word   string `parser:"| @( 'TRUE' | 'FALSE' | 'NULL' ) )"`
}

var rules = lexer.MustSimple([]lexer.SimpleRule{
	{Name: "Space", Pattern: `[ \t\r\n]+`},
	{Name: "Hex", Pattern: `[xX]'[0-9a-fA-F]*'`},
	{Name: "Keyword", Pattern: `(?i:AND|OR|NOT|IN|IS|NULL|TRUE|FALSE|BETWEEN)\b`},
	{Name: "Ident", Pattern: `[A-Za-z_][A-Za-z0-9_]*`},
	{Name: "Quoted", Pattern: `"(?:[^"]|"")+"`},
	{Name: "String", Pattern: `'(?:[^']|'')*'`},
	{Name: "Number", Pattern: `[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?`},
	{Name: "Sign", Pattern: `[(),<>=!]`},
})

var parser = participle.MustBuild[orTerm](
	participle.Lexer(rules), participle.Elide("Space"), participle.CaseInsensitive("Keyword"), participle.UseLookahead(2),
)

// Parse reads a filter. Text that is none, or is too long or too deep, is an error that
// wraps mink.ErrInvalid and says where. Text without a condition is one too.
func Parse(text string) (*Expr, error) {
	if len(text) > MaxTextBytes {
		return nil, fmt.Errorf("%w filter: %d bytes, at most %d", mink.ErrInvalid, len(text), MaxTextBytes)
	}
	if err := checkDepth(text); err != nil {
		return nil, err
	}
	root, err := parser.ParseString("", text)
	if err != nil {
		var at participle.Error
		if errors.As(err, &at) {
			return nil, fmt.Errorf("%w filter at character %d: %.300s", mink.ErrInvalid, at.Position().Offset+1, at.Message())
		}
		return nil, fmt.Errorf("%w filter: %.300s", mink.ErrInvalid, err.Error())
	}
	return &Expr{text: text, root: root}, nil
}

// checkDepth bounds what the parser recurses into, before it does: quoted text aside,
// only parentheses nest.
func checkDepth(text string) error {
	depth := 0
	var quote byte
	for i := range len(text) {
		switch c := text[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '(':
			if depth++; depth > MaxDepth {
				return fmt.Errorf("%w filter at character %d: parentheses are nested more than %d deep", mink.ErrInvalid, i+1, MaxDepth)
			}
		case c == ')':
			depth--
		}
	}
	return nil
}

// unquote reads a quoted name or text, whose quotes are doubled inside.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' && s[0] != '\'' {
		return s
	}
	return strings.ReplaceAll(s[1:len(s)-1], s[:1]+s[:1], s[:1])
}
