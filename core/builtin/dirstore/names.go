package dirstore

import (
	"fmt"
	"strings"
)

// File names. A key's segments become directories and, the last one, a file:
//
//	wal/1/7-ab/00000000000000000003   ->  wal/1/7-ab/00000000000000000003~
//	lake/db/t/data/00-1.parquet       ->  lake/db/t/data/00-1.parquet
//
// Bytes: a-z 0-9 - _ = , and a dot that is neither first nor last stand for
// themselves, every other byte is %xx in lower case. So two names never differ in
// case or in Unicode form only, none starts with a dot, and a name that starts
// with '%' and is not an escape is the store's own.
//
// Kinds: an object "a" and a directory "a" (of "a/b") must not meet. Files usually
// have a dot and directories do not, so that is what a bare name means; '~' at the
// end turns it round:
//
//	with a dot       x.y  file        x.y~  directory
//	without          x    directory   x~    file
//
// Length: a segment of pieceMax raw bytes or more is cut. Each full piece is a
// directory with '+' at its end, which stands for no slash; what is left (possibly
// nothing) follows as usual. A segment of exactly pieceMax bytes is cut as well:
// otherwise the keys below "piece+" would not be one run in byte order beside
// "piece" and "piece/".
const (
	pieceMax   = 80 // 80 * len("%xx") + len("~") < 255, the usual NAME_MAX
	marker     = '~'
	cut        = '+'
	tempDir    = "%tmp"
	formatFile = "%this-is-a-mink-store"
)

// kind of a directory entry.
type kind uint8

const (
	kindFile  kind = iota // an object; its segment ends the key
	kindDir               // a segment and its slash
	kindPiece             // a part of a long segment
)

// pathOf gives the key's directories, outermost first, and its file name.
func pathOf(key string) (dirs []string, file string) {
	for {
		segment, rest, more := strings.Cut(key, "/")
		for len(segment) >= pieceMax {
			dirs = append(dirs, nameOf(segment[:pieceMax], kindPiece))
			segment = segment[pieceMax:]
		}
		if !more {
			return dirs, nameOf(segment, kindFile)
		}
		dirs = append(dirs, nameOf(segment, kindDir))
		key = rest
	}
}

const hexDigits = "0123456789abcdef"

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '=' || c == ','
}

func nameOf(raw string, k kind) string {
	var buf [3*pieceMax + 2]byte
	return string(appendName(buf[:0], raw, k))
}

func appendName(b []byte, raw string, k kind) []byte {
	for i := range len(raw) {
		c := raw[i]
		if plain(c) || c == '.' && i > 0 && i < len(raw)-1 {
			b = append(b, c)
		} else {
			b = append(b, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	switch {
	case k == kindPiece:
		b = append(b, cut)
	case raw == "" || (k == kindFile) != strings.Contains(raw, "."):
		b = append(b, marker)
	}
	if raw == "" && k == kindDir {
		b = append(b, marker) // "~~": a slash right after a piece
	}
	return b
}

// entry is a decoded name. key is what it adds to the key of its directory; a
// directory's ends with the slash.
type entry struct {
	name string
	key  string
	kind kind
}

// parseName is the inverse of nameOf; ok is false for names that nameOf never
// gives: whatever the ends of the name suggest is checked by making the name anew.
func parseName(name string) (e entry, ok bool) {
	escaped, isPiece := strings.CutSuffix(name, string(cut))
	escaped, turned := strings.CutSuffix(escaped, string(marker))
	escaped, twice := strings.CutSuffix(escaped, string(marker))
	raw, ok := unescape(escaped)
	k := kindDir
	switch {
	case isPiece:
		k = kindPiece
	case !twice && turned != strings.Contains(raw, "."):
		k = kindFile
	}
	if !ok || strings.Contains(raw, "/") || len(raw) > pieceMax || isPiece != (len(raw) == pieceMax) {
		return entry{}, false
	}
	var buf [3*pieceMax + 2]byte
	if string(appendName(buf[:0], raw, k)) != name {
		return entry{}, false
	}
	key := raw
	if k == kindDir {
		key += "/"
	}
	return entry{name: name, key: key, kind: k}, true
}

func unescape(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

func (k kind) String() string { return [...]string{"file", "directory", "piece"}[k] }

func (e entry) String() string { return fmt.Sprintf("%s %q", e.kind, e.key) }
