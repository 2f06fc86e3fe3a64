package pluginhost

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/nearest"
	"github.com/mink-project/mink/sdk/plugin"
)

// Installed is one plugin found in a directory.
type Installed struct {
	Manifest plugin.Manifest
	Path     string // of the executable, absolute
	// Shadowed: an earlier directory has a plugin of the same kind and name, which
	// is used instead.
	Shadowed bool
	// Problem is why it cannot be used, nil when it can. Manifest may be empty then.
	Problem error
}

// DefaultDirs are where plugins are looked for unless the configuration says
// otherwise, first to last: "plugins" beside the node's executable, the user's,
// the system's. executable is os.Executable's answer, home os.UserHomeDir's; an
// empty one leaves its directory out.
func DefaultDirs(executable, home string) []string {
	var dirs []string
	if executable != "" {
		dirs = append(dirs, filepath.Join(filepath.Dir(executable), "plugins"))
	}
	if home != "" {
		dirs = append(dirs, filepath.Join(home, ".mink", "plugins"))
	}
	return append(dirs, "/usr/lib/mink/plugins")
}

// manifestSuffix ends the name of a manifest, which is its executable's name before
// it.
const manifestSuffix = ".json"

// Discover lists what is installed in the directories, sorted within each by file
// name. It runs nothing. A directory that does not exist is empty; one that cannot
// be read is an error.
func Discover(dirs []string) ([]Installed, error) {
	var all []Installed
	for _, dir := range dirs {
		found, err := discoverIn(dir)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			f.Shadowed = f.Problem == nil && slices.ContainsFunc(all, func(o Installed) bool {
				return o.Problem == nil && o.Manifest.Kind == f.Manifest.Kind && o.Manifest.Name == f.Manifest.Name
			})
			all = append(all, f)
		}
	}
	return all, nil
}

func discoverIn(dir string) ([]Installed, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("plugin directory %s: %w", dir, err)
	}
	names := map[string]bool{} // of executables, there or named by a manifest
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), plugin.FilePrefix) && !e.IsDir() {
			names[strings.TrimSuffix(e.Name(), manifestSuffix)] = true
		}
	}
	var found []Installed
	for name := range names {
		found = append(found, read(filepath.Join(dir, name)))
	}
	slices.SortFunc(found, func(a, b Installed) int { return cmp.Compare(a.Path, b.Path) })
	return found, nil
}

// read looks at one executable and the manifest beside it.
func read(path string) Installed {
	in := Installed{Path: path}
	in.Manifest, in.Problem = readManifest(path)
	return in
}

func readManifest(path string) (plugin.Manifest, error) {
	data, err := readLimited(path+manifestSuffix, plugin.ManifestMax)
	if errors.Is(err, fs.ErrNotExist) {
		return plugin.Manifest{}, fmt.Errorf("%s has no manifest beside it: install it with mink plugin install", path)
	}
	if err != nil {
		return plugin.Manifest{}, err
	}
	m, err := plugin.ParseManifest(data)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path+manifestSuffix, err)
	}
	if want := m.FileName(); filepath.Base(path) != want {
		return m, fmt.Errorf("%s is the manifest of %s, which would have to be the executable's name: install it with mink plugin install", path+manifestSuffix, want)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, fmt.Errorf("%s is there without its executable: install the plugin again", path+manifestSuffix)
	case err != nil:
		return m, err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return m, fmt.Errorf("%s is not executable: chmod +x", path)
	}
	if err := guard(path, os.Geteuid()); err != nil {
		return m, fmt.Errorf("%s is not run: %w", path, err)
	}
	if err := host.CheckProtocols(m.FileName(), m.Protocols, host.Protocols()); err != nil {
		return m, err
	}
	if m.SHA256 == "" {
		return m, fmt.Errorf("%s has no checksum, without which the executable is not run: install it with mink plugin install", path+manifestSuffix)
	}
	return m, nil
}

func readLimited(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, the limit of a manifest is %d", path, info.Size(), limit)
	}
	return os.ReadFile(path) //nolint:gosec // in a directory of the configuration
}

// NoPluginError is a URI whose scheme no usable plugin serves.
type NoPluginError struct {
	Kind, Scheme string
	Dirs         []string    // that were searched
	Known        []string    // schemes that plugins do serve
	Broken       []Installed // plugins that cannot be used and may be the ones meant
}

func (e *NoPluginError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no plugin opens %s:// (%s). Searched: %s.", e.Scheme, e.Kind, strings.Join(e.Dirs, ", "))
	for _, p := range e.Broken {
		fmt.Fprintf(&b, " Not usable: %v.", p.Problem)
	}
	if len(e.Known) > 0 {
		fmt.Fprintf(&b, " Installed plugins open %s://.", strings.Join(e.Known, "://, "))
	}
	fmt.Fprintf(&b, " Install one: mink plugin install PATH, where PATH is an executable named %s%s-NAME; or name its directory with --plugin-dir", plugin.FilePrefix, e.Kind)
	return b.String()
}

// forScheme chooses the plugin of the kind that opens the scheme: the first
// directory that has one. Two in one directory are an error, as it would be
// chance which one stored the data.
func forScheme(installed []Installed, dirs []string, kind, scheme string) (Installed, error) {
	none := &NoPluginError{Kind: kind, Scheme: scheme, Dirs: dirs}
	var found []Installed
	for _, in := range installed {
		switch {
		case in.Problem != nil && (in.Manifest.Kind == kind || in.Manifest.Kind == ""):
			none.Broken = append(none.Broken, in)
		case in.Problem != nil || in.Shadowed || in.Manifest.Kind != kind:
		case slices.Contains(in.Manifest.Schemes, scheme):
			found = append(found, in)
		default:
			none.Known = append(none.Known, in.Manifest.Schemes...)
		}
	}
	if len(found) == 0 {
		return Installed{}, none
	}
	for _, other := range found[1:] {
		if filepath.Dir(other.Path) == filepath.Dir(found[0].Path) {
			return Installed{}, fmt.Errorf("both %s and %s open %s://: remove one with mink plugin remove", found[0].Path, other.Path, scheme)
		}
	}
	return found[0], nil
}

// named is the first usable plugin of the kind and name.
func named(installed []Installed, dirs []string, kind, name string) (Installed, error) {
	var known []string
	var broken strings.Builder
	file := plugin.FilePrefix + kind + "-" + name
	for _, in := range installed {
		switch {
		case in.Problem == nil && !in.Shadowed && in.Manifest.Kind == kind && in.Manifest.Name == name:
			return in, nil
		case in.Problem != nil && filepath.Base(in.Path) == file:
			fmt.Fprintf(&broken, " Not usable: %v.", in.Problem)
		case in.Problem == nil && in.Manifest.Kind == kind:
			known = append(known, in.Manifest.Name)
		}
	}
	text := fmt.Sprintf("no plugin of the kind %s is named %.80q. Searched: %s.%s", kind, name, strings.Join(dirs, ", "), broken.String())
	if like, ok := nearest.Close(name, known); ok {
		text += fmt.Sprintf(" Did you mean %s?", like)
	} else if len(known) > 0 {
		text += fmt.Sprintf(" Installed are %s.", strings.Join(known, ", "))
	}
	return Installed{}, fmt.Errorf("%s Install one: mink plugin install PATH, where PATH is an executable named %s; or name its directory with --plugin-dir", text, file)
}
