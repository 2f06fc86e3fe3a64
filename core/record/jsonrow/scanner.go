package jsonrow

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON's tokens in place, by RFC 8259. encoding/json allocates for
// each of them, and neither tells members that occur twice nor text that is not
// UTF-8.
type scanner struct {
	b    []byte
	at   int
	text []byte // the last string, when it had escapes

	quiet bool // errors are errQuiet: nobody reads them
}

var errQuiet = errors.New("it does not fit")

func (s *scanner) errorf(format string, args ...any) error {
	if s.quiet {
		return errQuiet
	}
	return fmt.Errorf(format, args...)
}

// want says what the type takes.
func (s *scanner) want(n *node) error {
	if s.quiet {
		return errQuiet
	}
	return fmt.Errorf("want %s", wanted(n.typ))
}

// errSyntax: the bytes are not JSON.
var errSyntax = errors.New("no JSON")

func (s *scanner) bad(want string) error {
	if s.quiet {
		return errQuiet
	}
	if s.at >= len(s.b) {
		return s.errorf("%w: it ends where %s must be", errSyntax, want)
	}
	return s.errorf("%w: %q at byte %d, where %s must be", errSyntax, s.b[s.at:min(len(s.b), s.at+1)], s.at, want)
}

// peek passes over white space and answers the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.at < len(s.b) {
		switch c := s.b[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// end makes sure that nothing follows.
func (s *scanner) end() error {
	if s.peek(); s.at < len(s.b) {
		return s.bad("the end")
	}
	return nil
}

// more passes over a comma, and stops at the closing bracket.
func (s *scanner) more(closing byte) (bool, error) {
	switch s.peek() {
	case ',':
		s.at++
		return true, nil
	case closing:
		return false, nil
	}
	if closing == '}' {
		return false, s.bad("a comma or '}'")
	}
	return false, s.bad("a comma or ']'")
}

// name reads a member's name and its colon.
func (s *scanner) name() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.bad("a name in quotes")
	}
	name, err := s.str()
	if err != nil {
		return nil, err
	}
	if s.peek() != ':' {
		return nil, s.bad("a colon")
	}
	s.at++
	return name, nil
}

func (s *scanner) word(w string) error {
	if !bytes.HasPrefix(s.b[s.at:], []byte(w)) {
		return s.bad("a value")
	}
	s.at += len(w)
	return nil
}

// bare reads a number, true or false.
func (s *scanner) bare() ([]byte, error) {
	c := s.peek()
	start := s.at
	switch c {
	case 't':
		err := s.word("true")
		return s.b[start:s.at], err
	case 'f':
		err := s.word("false")
		return s.b[start:s.at], err
	}
	if s.at < len(s.b) && s.b[s.at] == '-' {
		s.at++
	}
	whole := s.digits()
	if whole == 0 || whole > 1 && s.b[s.at-whole] == '0' {
		return nil, s.bad("a value")
	}
	if s.at < len(s.b) && s.b[s.at] == '.' {
		s.at++
		if s.digits() == 0 {
			return nil, s.bad("a digit")
		}
	}
	if s.at < len(s.b) && s.b[s.at]|0x20 == 'e' {
		s.at++
		if s.at < len(s.b) && (s.b[s.at] == '+' || s.b[s.at] == '-') {
			s.at++
		}
		if s.digits() == 0 {
			return nil, s.bad("a digit")
		}
	}
	return s.b[start:s.at], nil
}

func (s *scanner) digits() int {
	start := s.at
	for s.at < len(s.b) && s.b[s.at]-'0' <= 9 {
		s.at++
	}
	return s.at - start
}

// str reads a string, which begins here. The answer is valid until the next call.
func (s *scanner) str() ([]byte, error) {
	s.at++
	start, ascii := s.at, true
	for s.at < len(s.b) {
		switch c := s.b[s.at]; {
		case c == '"':
			text := s.b[start:s.at]
			s.at++
			if !ascii && !utf8.Valid(text) {
				return nil, s.errorf("%w: %.100q is not UTF-8", errSyntax, text)
			}
			return text, nil
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return nil, s.bad("text (control characters are escaped)")
		case c >= utf8.RuneSelf:
			ascii = false
		}
		s.at++
	}
	return nil, s.bad("a closing quote")
}

var unescape = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escaped reads on where str met a backslash.
func (s *scanner) escaped(start int) ([]byte, error) {
	s.text = append(s.text[:0], s.b[start:s.at]...)
	for s.at < len(s.b) {
		c := s.b[s.at]
		s.at++
		switch {
		case c == '"':
			if !utf8.Valid(s.text) {
				return nil, s.errorf("%w: %.100q is not UTF-8", errSyntax, s.text)
			}
			return s.text, nil
		case c < ' ':
			s.at--
			return nil, s.bad("text (control characters are escaped)")
		case c != '\\':
			s.text = append(s.text, c)
		case s.at < len(s.b) && s.b[s.at] == 'u':
			r, ok := s.hex()
			if ok && utf16.IsSurrogate(r) {
				low := rune(-1)
				if ok = s.at+1 < len(s.b) && s.b[s.at] == '\\' && s.b[s.at+1] == 'u'; ok {
					s.at++
					low, ok = s.hex()
				}
				r = utf16.DecodeRune(r, low)
				ok = ok && r != utf8.RuneError
			}
			if !ok {
				return nil, s.errorf("%w: at byte %d an escape that stands for no character", errSyntax, s.at)
			}
			s.text = utf8.AppendRune(s.text, r)
		case s.at < len(s.b) && unescape[s.b[s.at]] != 0:
			s.text = append(s.text, unescape[s.b[s.at]])
			s.at++
		default:
			return nil, s.bad("an escape")
		}
	}
	return nil, s.bad("a closing quote")
}

// hex reads uXXXX.
func (s *scanner) hex() (rune, bool) {
	if len(s.b)-s.at < 5 {
		return 0, false
	}
	var r rune
	for _, c := range s.b[s.at+1 : s.at+5] {
		switch {
		case c-'0' <= 9:
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	s.at += 5
	return r, true
}
