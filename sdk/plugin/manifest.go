package plugin

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/internal/handshake"
	"github.com/mink-project/mink/sdk/nearest"
)

// The kinds of plugins, as manifests and file names say them.
const (
	KindObjectStore = "objstore"
	KindSink        = "sink"
	KindCatalog     = "catalog"
)

// Kinds lists every kind.
func Kinds() []string { return []string{KindObjectStore, KindSink, KindCatalog} }

// Stability says what may change in a plugin's next version.
const (
	Experimental = "experimental" // options and behaviour
	Stable       = "stable"       // nothing that a configuration depends on
)

// Manifest is what is known of a plugin without running it. The executable prints
// it for --describe; an installer adds the checksum and keeps it beside the
// executable, as FileName + ".json".
type Manifest struct {
	Kind      string   `json:"kind"`
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Summary   string   `json:"summary,omitempty"`
	Stability string   `json:"stability"`
	Protocols []int    `json:"protocols"`         // majors that it speaks
	Schemes   []string `json:"schemes,omitempty"` // of the URIs that it opens
	Options   []Option `json:"options,omitempty"`
	Env       []string `json:"env,omitempty"`    // variables of the host that it wants, "AWS_*" for all with the prefix
	SHA256    string   `json:"sha256,omitempty"` // of the executable, hexadecimal; the installer's
}

// Option is one setting of a plugin.
type Option struct {
	Name    string `json:"name"`
	Doc     string `json:"doc"`
	Secret  bool   `json:"secret,omitempty"` // never shown, never logged
	Default string `json:"default,omitempty"`
}

// FilePrefix begins the name of every plugin's executable.
const FilePrefix = "mink-plugin-"

// FileName is the executable's name: mink-plugin-<kind>-<name>.
func (m Manifest) FileName() string { return FilePrefix + m.Kind + "-" + m.Name }

// ManifestMax is the largest manifest that is read, in bytes.
const ManifestMax = 1 << 20

// ParseManifest reads and checks a manifest. Members that it does not know are
// of a newer version and are passed over.
func ParseManifest(data []byte) (Manifest, error) {
	if len(data) > ManifestMax {
		return Manifest{}, fmt.Errorf("manifest has %d bytes, the limit is %d", len(data), ManifestMax)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, fmt.Errorf("manifest is not the JSON that a plugin prints for --describe: %w", err)
	}
	return m, m.Validate()
}

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	schemeForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)
	optionForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	envForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\*?$`)
)

// Validate checks every field and reports all that is wrong.
func (m Manifest) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains(Kinds(), m.Kind) {
		fail("kind is %.40q; known are %s", m.Kind, strings.Join(Kinds(), ", "))
	}
	if !nameForm.MatchString(m.Name) || len(m.Name) > 64 {
		fail("name is %.80q; want up to 64 of a-z, 0-9 and single hyphens", m.Name)
	}
	if m.Version == "" {
		fail("version is empty")
	}
	if m.Stability != Experimental && m.Stability != Stable {
		fail("stability is %.40q; want %s or %s", m.Stability, Experimental, Stable)
	}
	if len(m.Protocols) == 0 {
		fail("protocols is empty; this SDK speaks %d", handshake.Versions())
	}
	for _, p := range m.Protocols {
		if p < 1 {
			fail("protocol %d; they begin at 1", p)
		}
	}
	if m.Kind == KindObjectStore && len(m.Schemes) == 0 {
		fail("schemes is empty: no URI would find this store")
	}
	for _, s := range m.Schemes {
		if !schemeForm.MatchString(s) || s == "file" {
			fail("scheme %.40q; want lower-case letters and digits, and not file, which is built in", s)
		}
	}
	seen := map[string]bool{}
	for _, o := range m.Options {
		if !optionForm.MatchString(o.Name) || seen[o.Name] {
			fail("option %.80q; want distinct names of a-z, 0-9 and _", o.Name)
		}
		seen[o.Name] = true
	}
	for _, e := range m.Env {
		if !envForm.MatchString(e) {
			fail("environment variable %.80q; want a name, or a prefix and *", e)
		}
	}
	if sum, err := hex.DecodeString(m.SHA256); m.SHA256 != "" && (err != nil || len(sum) != 32) {
		fail("sha256 is %.80q; want 64 hexadecimal digits", m.SHA256)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("manifest of plugin %.80q: %s", m.Name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// Resolve gives every option its value: the given one, else the default, which
// may be "". An option that the plugin does not have is an error.
func (m Manifest) Resolve(given map[string]string) (map[string]string, error) {
	known := make([]string, len(m.Options))
	values := make(map[string]string, len(m.Options))
	for i, o := range m.Options {
		known[i] = o.Name
		values[o.Name] = o.Default
	}
	for name, v := range given {
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return nil, fmt.Errorf("plugin %s has no option %.80q; it takes none", m.Name, name)
			}
			if like, ok := nearest.Close(name, known); ok {
				return nil, fmt.Errorf("plugin %s has no option %.80q; did you mean %s?", m.Name, name, like)
			}
			return nil, fmt.Errorf("plugin %s has no option %.80q; it has %s", m.Name, name, strings.Join(known, ", "))
		}
		values[name] = v
	}
	return values, nil
}

// Secret says that an option's value is never shown. One that the plugin does not
// have counts as secret.
func (m Manifest) Secret(option string) bool {
	i := slices.IndexFunc(m.Options, func(o Option) bool { return o.Name == option })
	return i < 0 || m.Options[i].Secret
}
