package schema

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

func sinkTable(keyed bool, options map[string]string) *Descriptor {
	d := &Descriptor{Database: "d", Table: "t", BucketCount: 1, Options: options, Schema: Schema{Columns: []Column{{Name: "id", Type: MustParseType("INT NOT NULL")}}}}
	if keyed {
		d.PrimaryKey = []string{"id"}
	}
	return d
}

func TestSinks(t *testing.T) {
	d, err := sinkTable(false, map[string]string{
		"lake": "true", "sink.b": "true", "sink.a": "true", "sink.c": "false", "sink.c.freshness": "9s",
		"sink.a.freshness": "1s", "sink.a.retain": "false", "sink.a.stall_limit": "1h", "sink.a.generation": "3", "sink.a.options.schema": "out", "sink.a.options.x.y": "z",
	}).Normalize()
	if err == nil {
		err = d.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Sinks(); !slices.Equal(got, []string{"a", "b", "lake"}) {
		t.Error(got)
	}
	for name, want := range map[string]SinkSettings{
		"a":    {Freshness: time.Second, StallLimit: time.Hour},
		"b":    {Freshness: 3 * time.Minute, Retain: true},
		"c":    {Freshness: 9 * time.Second, Retain: true},
		"lake": {Freshness: 3 * time.Minute, Retain: true},
	} {
		if got, err := d.SinkSettings(name); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	if got := d.SinkOptions("a"); !maps.Equal(got, map[string]string{"schema": "out", "x.y": "z"}) {
		t.Error(got)
	}
	if d.SinkGeneration("a") != 3 || d.SinkGeneration("b") != 0 || d.TiersTo("c") || !d.TiersTo("lake") {
		t.Errorf("%+v", d.Options)
	}
	off, err := d.Apply([]Change{{Op: SetOptions, Options: map[string]string{"sink.a": "false"}}, {Op: ResetOptions, Names: []string{"lake"}}})
	if err != nil || !slices.Equal(off.Sinks(), []string{"b"}) {
		t.Errorf("%+v, %v", off, err)
	}
}

func TestSinksRefused(t *testing.T) {
	for _, c := range []struct {
		keyed   bool
		options map[string]string
		want    string
	}{
		{false, map[string]string{"sink.a.freshness": "1m"}, "set sink.a too"},
		{true, map[string]string{"sink.a": "true", "sink.a.retain": "false"}, "without a primary key"},
		{true, map[string]string{"sink.a": "true", "sink.a.stall_limit": "1h"}, "without a primary key"},
	} {
		d, err := sinkTable(c.keyed, c.options).Normalize()
		if err == nil {
			err = d.Validate()
		}
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.options, err)
		}
	}
}
