package api_test

import (
	"errors"
	"testing"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

func TestParsePosition(t *testing.T) {
	for text, want := range map[string]api.Position{
		"": {Kind: api.AtEarliest}, "earliest": {Kind: api.AtEarliest}, "latest": {Kind: api.AtLatest}, "17": {api.AtOffset, 17},
		"17ms": {api.AtTimestamp, 17}, "1970-01-01T00:00:01.5Z": {api.AtTimestamp, 1500}, "1970-01-01T01:00:00+01:00": {api.AtTimestamp, 0},
	} {
		if got, err := api.ParsePosition(text); err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1", "-1ms", "x", "ms", "1.5", "2026-01-01", "99999999999999999999"} {
		if _, err := api.ParsePosition(text); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A text is a position of one kind, without a negative value, or invalid.
func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{"", "earliest", "latest", "17", "17ms", "-1", "1970-01-01T00:00:01.5Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", "99999999999999999999ms"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := api.ParsePosition(text)
		if err != nil {
			if !errors.Is(err, mink.ErrInvalid) || len(err.Error()) > 1000 {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if p.Value < 0 && p.Kind != api.AtTimestamp || p.Value != 0 && (p.Kind == api.AtEarliest || p.Kind == api.AtLatest) {
			t.Errorf("%q is %+v", text, p)
		}
	})
}
