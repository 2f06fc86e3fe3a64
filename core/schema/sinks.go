package schema

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mink-project/mink/core/internal/units"
)

// LakeSink is the name of the sink that the option lake switches on.
const LakeSink = "lake"

// Options of further sinks: sink.NAME, and what belongs to it.
//
//	sink.NAME              true: the table is tiered to the sink
//	sink.NAME.freshness    and so on, as lake_freshness
//	sink.NAME.options.KEY  text for the sink itself
const (
	sinkPrefix      = "sink."
	sinkFreshness   = "freshness"
	sinkRetain      = "retain"
	sinkStallLimit  = "stall_limit"
	sinkGeneration  = "generation"
	sinkOptions     = "options."
	sinkPlaceholder = "NAME"
)

// SinkName is the form of the name of a sink.
var SinkName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// sinkOptionName is the form of a KEY of sink.NAME.options.KEY.
var sinkOptionName = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,62}$`)

// SinkOption is the option that switches a sink on.
func SinkOption(sink string) string {
	if sink == LakeSink {
		return OptionLake
	}
	return sinkPrefix + sink
}

// SinkGenerationOption is the option that begins a table anew at a sink.
func SinkGenerationOption(sink string) string {
	if sink == LakeSink {
		return OptionLakeGeneration
	}
	return sinkPrefix + sink + "." + sinkGeneration
}

// SinkSettings are a table's options for one sink, typed, with defaults filled in.
type SinkSettings struct {
	Freshness  time.Duration // how old the sink's copy may become
	Retain     bool          // retention waits for the sink
	StallLimit time.Duration // how long rows wait for a sink that takes none; 0: for ever
}

// Sinks are the names of the sinks that the options name, sorted.
func (d *Descriptor) Sinks() []string {
	var names []string
	for _, option := range slices.Sorted(maps.Keys(d.Options)) {
		if name, ok := sinkOf(option); ok && d.Options[option] == "true" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// sinkOf is the sink that an option switches on or off.
func sinkOf(option string) (name string, ok bool) {
	if option == OptionLake {
		return LakeSink, true
	}
	name, ok = strings.CutPrefix(option, sinkPrefix)
	return name, ok && !strings.Contains(name, ".")
}

// TiersTo says whether the options name the sink.
func (d *Descriptor) TiersTo(sink string) bool { return d.Options[SinkOption(sink)] == "true" }

// SinkGeneration is how often the table was begun anew at a sink by wish.
func (d *Descriptor) SinkGeneration(sink string) int64 {
	n, err := strconv.ParseInt(d.Options[SinkGenerationOption(sink)], 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// SinkRetains says whether retention waits for a sink.
func (d *Descriptor) SinkRetains(sink string) bool {
	return sink == LakeSink || d.Options[sinkPrefix+sink+"."+sinkRetain] != "false"
}

// SinkOptions are the user's options for a sink itself: sink.NAME.options.KEY by KEY.
func (d *Descriptor) SinkOptions(sink string) map[string]string {
	out := map[string]string{}
	for option, value := range d.Options {
		if key, ok := strings.CutPrefix(option, sinkPrefix+sink+"."+sinkOptions); ok {
			out[key] = value
		}
	}
	return out
}

// SinkSettings are the options for one sink. The descriptor was validated.
func (d *Descriptor) SinkSettings(sink string) (SinkSettings, error) {
	if sink == LakeSink {
		o, err := d.ParsedOptions()
		return SinkSettings{Freshness: o.LakeFreshness, Retain: true, StallLimit: o.StallLimit}, err
	}
	text := func(field string) string {
		spec := sinkFields[field]
		return cmp.Or(d.Options[sinkPrefix+sink+"."+field], spec.Default)
	}
	s := SinkSettings{Retain: d.SinkRetains(sink)}
	var err error
	if s.Freshness, err = units.ParseDuration(text(sinkFreshness)); err != nil {
		return s, err
	}
	if v := text(sinkStallLimit); v != forever {
		s.StallLimit, err = units.ParseDuration(v)
	}
	return s, err
}

const forever = "forever"

// sinkSpecs document the options of further sinks, under the name of a sink that no
// sink has.
func sinkSpecs() []OptionSpec {
	name := func(field string) string { return sinkPrefix + sinkPlaceholder + field }
	return []OptionSpec{
		{Name: name(""), Type: TypeBool, Default: "false", Tables: AllTables, PerSink: true,
			Doc: "Tiers the table to the sink NAME of the nodes' configuration ([sinks.md](sinks.md)), beside the lake or without it, and beside other sinks: each has a schedule and offsets of its own. Switched off, what the sink has stays there and nothing waits for it; switched on again, it goes on there, as lake. Dropping the table drops it at the sink."},
		{Name: name("." + sinkFreshness), Type: TypeDuration, Default: "3m", Min: 1000, Tables: AllTables, PerSink: true,
			Doc: "How old the sink's copy may become: the longest time between rounds while rows arrive."},
		{Name: name("." + sinkRetain), Type: TypeBool, Default: "true", Tables: LogTables, PerSink: true,
			Doc: "true: the log keeps what the sink does not have yet, whatever log_ttl and log_max_bytes say. false: retention does not wait for the sink, which goes on behind what the log let go of. Tables without a primary key."},
		{Name: name("." + sinkStallLimit), Type: TypeDuration, Default: forever, Special: []string{forever}, Min: 1000, Tables: LogTables, PerSink: true,
			Doc: "Gives rows up for the sink, as lake_stall_limit for the lake. Tables without a primary key."},
		{Name: name("." + sinkGeneration), Type: TypeInt, Default: "0", Tables: AllTables, PerSink: true,
			Doc: "Begins the table anew at the sink when it is raised, as lake_generation in the lake."},
		{Name: name("." + sinkOptions + "KEY"), Type: TypeText, Tables: AllTables, PerSink: true,
			Doc: "Text for the sink itself, about this table; the sink's manual lists the keys that it knows."},
	}
}

// sinkFields are sinkSpecs by what follows "sink.NAME."; "" is sink.NAME. Never
// written after start.
var sinkFields = func() map[string]OptionSpec {
	m := map[string]OptionSpec{}
	for _, s := range sinkSpecs() {
		field := strings.TrimPrefix(s.Name, sinkPrefix+sinkPlaceholder)
		m[strings.TrimPrefix(field, ".")] = s
	}
	return m
}()

// findSinkOption finds an option of a further sink.
func findSinkOption(name string) (OptionSpec, bool) {
	rest, ok := strings.CutPrefix(name, sinkPrefix)
	if !ok {
		return OptionSpec{}, false
	}
	sink, field, _ := strings.Cut(rest, ".")
	if !SinkName.MatchString(sink) || sink == LakeSink {
		return OptionSpec{}, false
	}
	if key, own := strings.CutPrefix(field, sinkOptions); own && sinkOptionName.MatchString(key) {
		field = sinkOptions + "KEY"
	} else if own || strings.HasSuffix(rest, ".") {
		return OptionSpec{}, false
	}
	spec, ok := sinkFields[field]
	spec.Name = name
	return spec, ok
}

// checkSinks refuses settings of a sink that the table does not have: a name that
// was mistyped.
func (d *Descriptor) checkSinks() error {
	for _, name := range slices.Sorted(maps.Keys(d.Options)) {
		rest, ok := strings.CutPrefix(name, sinkPrefix)
		if !ok {
			continue
		}
		sink, field, _ := strings.Cut(rest, ".")
		if _, set := d.Options[sinkPrefix+sink]; !set && field != "" {
			return optionError(name, d.Options[name], "set %s%s too, to true or false: it switches the sink on", sinkPrefix, sink)
		}
	}
	return nil
}
