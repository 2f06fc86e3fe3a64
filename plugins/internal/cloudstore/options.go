package cloudstore

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// Options reads the options of a plugin and gathers what is wrong with them.
type Options struct {
	values map[string]string
	errs   []string
}

// NewOptions takes the values as they were configured; "" is unset.
func NewOptions(values map[string]string) *Options { return &Options{values: values} }

func (o *Options) fail(name, format string, args ...any) {
	o.errs = append(o.errs, fmt.Sprintf("option "+name+": "+format, args...))
}

// Text is the value as it is.
func (o *Options) Text(name string) string { return o.values[name] }

// Flag is true or false; byDefault when unset.
func (o *Options) Flag(name string, byDefault bool) bool {
	v := o.values[name]
	if v == "" {
		return byDefault
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		o.fail(name, "%q; want true or false", v)
	}
	return b
}

// Duration is a span of time such as 30s; byDefault when unset.
func (o *Options) Duration(name string, byDefault, least time.Duration) time.Duration {
	v := o.values[name]
	if v == "" {
		return byDefault
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < least {
		o.fail(name, "%q; want a duration of at least %v, such as %v", v, least, byDefault)
	}
	return d
}

// Number is a whole number; byDefault when unset.
func (o *Options) Number(name string, byDefault, least, most int) int {
	v := o.values[name]
	if v == "" {
		return byDefault
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		o.fail(name, "%q; want a number of %d to %d", v, least, most)
	}
	return n
}

// Word is one of some words; "" when unset.
func (o *Options) Word(name string, words ...string) string {
	v := o.values[name]
	if v != "" && !slices.Contains(words, v) {
		o.fail(name, "%q; want one of %s", v, strings.Join(words, ", "))
	}
	return v
}

// Endpoint is an http or https URL, nil when unset.
func (o *Options) Endpoint(name string) *url.URL {
	v := o.values[name]
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		o.fail(name, "want a URL such as https://storage.example.com:9000, without user and query")
		return nil
	}
	return u
}

// Refuse adds an error about options that do not go together.
func (o *Options) Refuse(format string, args ...any) {
	o.errs = append(o.errs, fmt.Sprintf(format, args...))
}

// Err is all that was wrong, as ErrInvalid; nil when nothing was.
func (o *Options) Err() error {
	if len(o.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", objstore.ErrInvalid, strings.Join(o.errs, "; "))
}

// Location is a URI of a store: scheme://host/path.
type Location struct {
	Scheme, Host, Path string // Path without slashes at its ends
}

// ParseURI splits a store's URI, ErrInvalid when it is not one of the schemes or
// has something that does not belong in it. Options go by name, not in the URI.
func ParseURI(uri, form string, schemes ...string) (Location, error) {
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok || !slices.Contains(schemes, scheme) {
		return Location{}, fmt.Errorf("%w: want a URI such as %s", objstore.ErrInvalid, form)
	}
	if strings.ContainsAny(rest, "?#") {
		return Location{}, fmt.Errorf("%w: a URI such as %s has no query: give options by name", objstore.ErrInvalid, form)
	}
	host, path, _ := strings.Cut(rest, "/")
	l := Location{Scheme: scheme, Host: host, Path: strings.Trim(path, "/")}
	if host == "" || strings.ContainsRune(host, ':') {
		return Location{}, fmt.Errorf("%w: want a URI such as %s", objstore.ErrInvalid, form)
	}
	return l, l.checkPrefix(l.Path)
}

// prefixMax leaves room for a key of objstore.KeyMax in a name of 1,024 bytes.
const prefixMax = 1024 - objstore.KeyMax - 1

func (l Location) checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if err := objstore.ValidateKey(prefix); err != nil {
		return fmt.Errorf("the URI's prefix: %w", err)
	}
	if len(prefix) > prefixMax {
		return fmt.Errorf("%w: the URI's prefix has %d bytes, the limit is %d", objstore.ErrInvalid, len(prefix), prefixMax)
	}
	return nil
}

// Loopback says that a URL's host is this machine.
func Loopback(u *url.URL) bool {
	if u == nil {
		return false
	}
	host := u.Hostname()
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}
