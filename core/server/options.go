package server

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Options are a plugin's settings by name. As text: name=value,name=value; a value
// with a comma stands in double quotes together with its name.
type Options map[string]string

// UnmarshalText reads the text form.
func (o *Options) UnmarshalText(text []byte) error {
	*o = nil
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	fields, err := csv.NewReader(bytes.NewReader(text)).Read()
	if err != nil {
		return errors.New("options: want name=value,name=value") // the reader's error would show the values
	}
	out := Options{}
	for _, f := range fields {
		name, value, ok := strings.Cut(f, "=")
		name = strings.TrimSpace(name)
		if _, twice := out[name]; !ok || name == "" || twice {
			return errors.New("options: want name=value,name=value, every name once")
		}
		out[name] = value
	}
	*o = out
	return nil
}

// String is the text form with its values hidden: options hold secrets.
func (o Options) String() string { return o.redacted(func(string) bool { return true }) }

// redacted is the text form, sorted, without the values that are secret.
func (o Options) redacted(secret func(name string) bool) string {
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		value := o[name]
		if secret(name) {
			value = "xxxxx"
		}
		fields = append(fields, name+"="+value)
	}
	return strings.Join(fields, ",")
}

// optionTable reads a TOML table: strings, numbers and booleans.
func optionTable(_, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[Options]() {
		return value, nil
	}
	table, ok := value.(map[string]any)
	if !ok {
		return value, nil
	}
	out := Options{}
	for name, v := range table {
		switch v.(type) {
		case string, bool, int64, float64:
			out[name] = fmt.Sprint(v)
		default:
			return nil, fmt.Errorf("option %s: want a string, a number or true or false", name)
		}
	}
	return out, nil
}

// walOptions are those in effect for walURI.
func (c Config) walOptions() Options {
	if len(c.WALOptions) > 0 || c.WALURI == "" {
		return c.WALOptions
	}
	if schemeOf(c.WALURI) == schemeOf(c.storageURI()) {
		return c.StorageOptions
	}
	return nil
}

// ownWAL says that the write-ahead log has a store of its own.
func (c Config) ownWAL() bool {
	return c.walURI() != c.storageURI() || c.WALURI != "" && !maps.Equal(c.walOptions(), c.StorageOptions)
}

func schemeOf(uri string) string {
	scheme, _, _ := strings.Cut(uri, "://")
	return scheme
}

// checkOptions refuses options that nothing would read.
func (c Config) checkOptions() error {
	if len(c.WALOptions) > 0 && c.WALURI == "" {
		return errors.New("wal_options is set and wal_uri is not: they are options of that store's plugin")
	}
	for _, s := range []struct {
		key, uri string
		options  Options
	}{{"storage_options", c.storageURI(), c.StorageOptions}, {"wal_options", c.walURI(), c.WALOptions}} {
		if len(s.options) > 0 && schemeOf(s.uri) == "file" {
			return fmt.Errorf("%s is set, and %s takes no options: they are for plugins", s.key, s.uri)
		}
	}
	return nil
}
