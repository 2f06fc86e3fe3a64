package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// Position is a place in a log, as people name it: where a read starts, or where
// a consumer group is set to.
type Position struct {
	Kind  PositionKind
	Value int64 // of AtOffset; of AtTimestamp, milliseconds since 1970 UTC
}

// PositionKind says what a Position goes by.
type PositionKind uint8

// The kinds of positions.
const (
	AtEarliest PositionKind = iota
	AtLatest
	AtOffset
	AtTimestamp
)

// ParsePosition reads "earliest", "latest", an offset, RFC 3339 or "123ms"; "" is
// earliest. Errors: mink.ErrInvalid.
func ParsePosition(text string) (Position, error) {
	switch text {
	case "", "earliest":
		return Position{Kind: AtEarliest}, nil
	case "latest":
		return Position{Kind: AtLatest}, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return Position{AtOffset, n}, nil
	}
	if ms, ok := strings.CutSuffix(text, "ms"); ok {
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil && n >= 0 {
			return Position{AtTimestamp, n}, nil
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return Position{AtTimestamp, at.UnixMilli()}, nil
	}
	return Position{}, fmt.Errorf(`%w position %.100q: want "earliest", "latest", an offset, or a timestamp such as 2026-01-31T07:05:00Z or 1700000000000ms`, mink.ErrInvalid, text)
}
