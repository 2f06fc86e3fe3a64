package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/nearest"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
)

// SinkConfig is one sink: [sinks.NAME] of the configuration file.
type SinkConfig struct {
	Plugin  string  // name of the plugin, of the kind sink
	Options Options // of the plugin
}

// Sinks are the sinks by name. As text: NAME.plugin=P,NAME.options.OPTION=VALUE, in the
// form of Options.
type Sinks map[string]SinkConfig

// UnmarshalText reads the text form.
func (s *Sinks) UnmarshalText(text []byte) error {
	*s = nil
	var flat Options
	if err := flat.UnmarshalText(text); err != nil {
		return fmt.Errorf("sinks: want NAME.plugin=PLUGIN,NAME.options.OPTION=VALUE: %w", err)
	}
	out := Sinks{}
	for key, value := range flat {
		name, field, _ := strings.Cut(key, ".")
		c := out[name]
		option, isOption := strings.CutPrefix(field, "options.")
		switch {
		case field == "plugin":
			c.Plugin = value
		case isOption && option != "":
			if c.Options == nil {
				c.Options = Options{}
			}
			c.Options[option] = value
		default:
			return fmt.Errorf("sinks: %.80q: want NAME.plugin or NAME.options.OPTION", key)
		}
		out[name] = c
	}
	*s = out
	return nil
}

// String is the text form with the values of options hidden: they hold secrets.
func (s Sinks) String() string {
	return s.redacted(func(string, string) bool { return true })
}

// redacted is the text form, sorted, without the values of options that are secret.
func (s Sinks) redacted(secret func(sink, option string) bool) string {
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fields = append(fields, name+".plugin="+s[name].Plugin)
		if len(s[name].Options) == 0 {
			continue
		}
		options := s[name].Options.redacted(func(option string) bool { return secret(name, option) })
		for _, o := range strings.Split(options, ",") {
			fields = append(fields, name+".options."+o)
		}
	}
	return strings.Join(fields, ",")
}

// sinkTables reads the TOML tables [sinks.NAME] and [sinks.NAME.options].
func sinkTables(_, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[Sinks]() {
		return value, nil
	}
	tables, ok := value.(map[string]any)
	if !ok {
		return value, nil
	}
	out := Sinks{}
	for name, v := range tables {
		table, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("sinks.%s: want a table: [sinks.%[1]s] and in it plugin = \"NAME\"", name)
		}
		var c SinkConfig
		for key, v := range table {
			switch key {
			case "plugin":
				if c.Plugin, ok = v.(string); !ok {
					return nil, fmt.Errorf("sinks.%s.plugin: want the name of a plugin in quotes", name)
				}
			case "options":
				options, err := optionTable(nil, reflect.TypeFor[Options](), v)
				if err != nil {
					return nil, fmt.Errorf("sinks.%s.options: %w", name, err)
				}
				if c.Options, ok = options.(Options); !ok {
					return nil, fmt.Errorf("sinks.%s.options: want a table", name)
				}
			default:
				return nil, fmt.Errorf("sinks.%s.%s: a sink has plugin and options; the plugin's own settings are in [sinks.%[1]s.options]", name, key)
			}
		}
		out[name] = c
	}
	return out, nil
}

// checkSinks checks what can be checked without looking for plugins.
func (c Config) checkSinks() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
		switch {
		case name == cluster.LakeSink:
			errs = append(errs, fmt.Errorf("sinks.%s: the name is the lake's, which lake_catalog configures; choose another", name))
		case !schema.SinkName.MatchString(name):
			errs = append(errs, fmt.Errorf("sinks.%.80q: want 1 to 63 of a-z, 0-9, _ and -, beginning with a letter", name))
		case c.Sinks[name].Plugin == "":
			errs = append(errs, fmt.Errorf("sinks.%s: plugin is missing: name an installed plugin of the kind sink; mink plugin list shows them", name))
		}
	}
	return errors.Join(errs...)
}

// openSinks opens the sinks of the configuration. What no restart would mend fails the
// start; a target that is down does not.
func (p *parts) openSinks(ctx context.Context) error {
	p.sinks = map[string]sink.Sink{}
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Sinks)) {
		if _, given := p.given.Sinks[name]; given {
			continue
		}
		s, err := p.plugins.OpenSink(ctx, p.cfg.Sinks[name].Plugin, p.cfg.Sinks[name].Options)
		if err != nil {
			return fmt.Errorf("sinks.%s: %w", name, err)
		}
		p.sinks[name] = s
	}
	return nil
}

// checkSink says whether a table can be tiered to a sink of this node.
func (p *parts) checkSink(d *schema.Descriptor, name string) error {
	if name == cluster.LakeSink {
		return p.checkLakeNames(d)
	}
	s, ok := p.sinks[name]
	if !ok {
		known := slices.Sorted(maps.Keys(p.sinks))
		known = slices.DeleteFunc(known, func(n string) bool { return n == cluster.LakeSink })
		hint := "this node has none"
		if len(known) > 0 {
			hint = "this node has " + strings.Join(known, ", ")
			if like, close := nearest.Close(name, known); close {
				hint += "; did you mean " + like + "?"
			}
		}
		return fmt.Errorf("%w sink %q: the configuration of this node has no [sinks.%[2]s]: add it to that of every node and start them again (%s)", mink.ErrInvalid, name, hint)
	}
	if len(d.PrimaryKey) > 0 && s.Describe().Changes == sink.ChangesRefused {
		return fmt.Errorf("%w by sink %q: it takes no tables with a primary key", mink.ErrUnsupported, name)
	}
	return nil
}

// checkSinkConfig tries the sinks of a configuration: it starts their plugins and opens
// them. A target that does not answer is a warning: a node starts without it.
func checkSinkConfig(ctx context.Context, cfg Config, plugins *pluginhost.Host) (report []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(cfg.Sinks)) {
		c := cfg.Sinks[name]
		in, err := plugins.FindNamed(plugin.KindSink, c.Plugin, c.Options)
		if err != nil {
			return nil, fmt.Errorf("sinks.%s: %w", name, err)
		}
		s, err := plugins.OpenSink(ctx, c.Plugin, c.Options)
		if err != nil {
			return nil, fmt.Errorf("sinks.%s: %w", name, err)
		}
		d, line := s.Describe(), fmt.Sprintf("sinks.%s: plugin %s %s, %s: ", name, in.Manifest.Name, in.Manifest.Version, in.Path)
		switch d.Delivery {
		case sink.ExactlyOnce:
			line += "opened; each row exactly once"
		case sink.AtLeastOnce:
			line += "opened; each row at least once"
		default:
			line = "warning: " + line + "it cannot be opened now (its log says why); a node would start and its tables wait"
		}
		if err := s.Close(); err != nil {
			return nil, fmt.Errorf("sinks.%s: %w", name, err)
		}
		report = append(report, line)
	}
	return report, nil
}
