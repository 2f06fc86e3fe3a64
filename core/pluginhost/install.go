package pluginhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
)

// An installed plugin is two names in a plugin directory, which lead through one
// link to a directory of its own. To switch that link is to install: whoever looks,
// and whenever this process is killed, finds the old version whole or the new one.
//
//	DIR/mink-plugin-sink-x       -> .installed/mink-plugin-sink-x/current/mink-plugin-sink-x
//	DIR/mink-plugin-sink-x.json  -> .installed/mink-plugin-sink-x/current/mink-plugin-sink-x.json
//	DIR/.installed/mink-plugin-sink-x/current -> 3f2a...-1234
//	DIR/.installed/mink-plugin-sink-x/3f2a...-1234/   executable and manifest
const (
	installedName = ".installed"
	currentName   = "current"
	stagingPrefix = "staging-"
)

// InstallRequest says what to install where.
type InstallRequest struct {
	// Source is an executable, a directory with one, or an archive with one
	// (.tar.gz, .tgz, .zip). In a directory and in an archive it is found by its
	// name, mink-plugin-..., and a manifest beside it must fit it.
	Source string
	Dir    string // plugin directory; made when it is absent
	Kind   string // that it must be; "": any
	// SHA256, hexadecimal, of the file Source; "": not checked. What is installed is
	// the very bytes that were hashed.
	SHA256 string
	// BytesMax bounds what an archive or a directory unpacks to. 0: 256 MiB.
	BytesMax int64
}

// Install checks a plugin and puts it into a plugin directory, in the place of an
// older version. It runs the executable with --describe, after the checksum was
// checked.
func Install(ctx context.Context, req InstallRequest) (Installed, error) {
	dir, err := filepath.Abs(req.Dir)
	if err != nil {
		return Installed{}, err
	}
	root := filepath.Join(dir, installedName)
	if err := os.MkdirAll(root, 0o755); err != nil { //nolint:gosec // other users run nodes
		return Installed{}, err
	}
	if err := guardDir(dir, os.Geteuid()); err != nil {
		return Installed{}, fmt.Errorf("install %s: %w", req.Source, err)
	}
	unlock, err := lockDir(root)
	if err != nil {
		return Installed{}, err
	}
	defer unlock()
	if err := removeStaging(root); err != nil {
		return Installed{}, err
	}
	staging, err := os.MkdirTemp(root, stagingPrefix)
	if err != nil {
		return Installed{}, err
	}
	defer func() { _ = os.RemoveAll(staging) }() // gone when all went well
	m, err := stage(ctx, req, staging)
	if err != nil {
		return Installed{}, fmt.Errorf("install %s: %w; nothing was installed", req.Source, err)
	}
	if err := activate(dir, staging, m); err != nil {
		return Installed{}, fmt.Errorf("install %s into %s: %w", req.Source, dir, err)
	}
	return read(filepath.Join(dir, m.FileName())), nil
}

func lockDir(root string) (unlock func(), err error) {
	l := flock.New(filepath.Join(root, "lock"))
	ok, err := l.TryLock()
	if err == nil && !ok {
		err = errors.New("another mink plugin command is at work there")
	}
	if err != nil {
		return nil, fmt.Errorf("plugin directory %s: %w", filepath.Dir(root), err)
	}
	return func() { _ = l.Unlock() }, nil
}

// removeStaging removes what killed commands left.
func removeStaging(root string) error {
	entries, err := os.ReadDir(root)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), stagingPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(root, e.Name())))
		}
	}
	return err
}

// stage brings executable and manifest into the staging directory, under their
// names, checked and for good on the disk.
func stage(ctx context.Context, req InstallRequest, staging string) (plugin.Manifest, error) {
	path, err := collect(req, staging)
	if err != nil {
		return plugin.Manifest{}, err
	}
	given, err := readLimited(path+manifestSuffix, plugin.ManifestMax)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return plugin.Manifest{}, err
	}
	if given != nil { // before the executable is run
		m, err := plugin.ParseManifest(given)
		if err != nil {
			return m, err
		}
		if m.SHA256 != "" {
			sum, err := host.Checksum(path)
			if err == nil && !strings.EqualFold(sum, m.SHA256) {
				err = fmt.Errorf("%w: the executable has sha256 %s, the manifest beside it says %s", host.ErrChecksum, sum, m.SHA256)
			}
			if err != nil {
				return m, err
			}
		}
	}
	m, err := host.Describe(ctx, path)
	if err != nil {
		return m, err
	}
	if err := fits(m, given, req.Kind); err != nil {
		return m, err
	}
	if target := filepath.Join(staging, m.FileName()); path != target {
		if err := errors.Join(os.Rename(path, target), removeIfThere(path+manifestSuffix)); err != nil {
			return m, err
		}
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return m, err
	}
	return m, writeSynced(filepath.Join(staging, m.FileName()+manifestSuffix), data)
}

// fits compares what the executable says with what is wanted and what came beside it.
func fits(m plugin.Manifest, given []byte, kind string) error {
	if kind != "" && m.Kind != kind {
		return &host.KindError{Name: m.Name, Is: m.Kind, Want: kind}
	}
	if given != nil {
		beside, err := plugin.ParseManifest(given)
		if err != nil {
			return err
		}
		if beside.FileName() != m.FileName() || beside.Version != m.Version {
			return fmt.Errorf("the manifest beside it is of %s %s, and the executable says that it is %s %s", beside.FileName(), beside.Version, m.FileName(), m.Version)
		}
	}
	return host.CheckProtocols(m.FileName(), m.Protocols, host.Protocols())
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) //nolint:gosec // other users run nodes
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// activate makes the staged plugin the installed one.
func activate(dir, staging string, m plugin.Manifest) error {
	name := m.FileName()
	home := filepath.Join(dir, installedName, name)
	if err := os.MkdirAll(home, 0o755); err != nil { //nolint:gosec // other users run nodes
		return err
	}
	version := fmt.Sprintf("%.12s-%s", m.SHA256, strings.TrimPrefix(filepath.Base(staging), stagingPrefix))
	if err := errors.Join(os.Chmod(staging, 0o755), syncDir(staging), os.Rename(staging, filepath.Join(home, version)), syncDir(home)); err != nil { //nolint:gosec // as above
		return err
	}
	if err := link(version, filepath.Join(home, currentName)); err != nil {
		return err
	}
	// The names are there already when this replaces an installed version. Files in
	// their place, which make plugins writes, go: the manifest first, without which
	// the other is not used.
	if info, err := os.Lstat(filepath.Join(dir, name+manifestSuffix)); err == nil && info.Mode().IsRegular() {
		if err := os.Remove(filepath.Join(dir, name+manifestSuffix)); err != nil {
			return err
		}
	}
	for _, n := range []string{name, name + manifestSuffix} {
		if err := link(filepath.Join(installedName, name, currentName, n), filepath.Join(dir, n)); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(dir), removeOthers(home, version))
}

// link makes path lead to target, at once.
func link(target, path string) error {
	if now, err := os.Readlink(path); err == nil && now == target {
		return nil
	}
	next := path + ".next"
	if err := removeIfThere(next); err != nil {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// removeOthers removes older versions. A node that runs one has it open.
func removeOthers(home, version string) error {
	entries, err := os.ReadDir(home)
	for _, e := range entries {
		if e.Name() != version && e.Name() != currentName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(home, e.Name())))
		}
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path) //nolint:gosec // a plugin directory
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Find picks a plugin by its name, by kind-name, or by its file's name. One that
// is shadowed, or cannot be used, is picked when no other has the name.
func Find(all []Installed, name string) (Installed, error) {
	var good, rest []Installed
	for _, in := range all {
		file := filepath.Base(in.Path)
		if name != in.Manifest.Name && name != file && plugin.FilePrefix+name != file {
			continue
		}
		if in.Problem == nil && !in.Shadowed {
			good = append(good, in)
		} else {
			rest = append(rest, in)
		}
	}
	found := good
	if len(found) == 0 {
		found = rest
	}
	switch {
	case len(found) == 0:
		return Installed{}, fmt.Errorf("no plugin %q is installed; mink plugin list shows what is", name)
	case len(good) > 1:
		return Installed{}, fmt.Errorf("%q is the name of %s and of %s: give one of these names", name, filepath.Base(good[0].Path), filepath.Base(good[1].Path))
	}
	return found[0], nil
}

// Remove takes a plugin out of its directory. A node that runs it goes on until
// it has to start it again.
func Remove(in Installed) error {
	dir, name := filepath.Dir(in.Path), filepath.Base(in.Path)
	root := filepath.Join(dir, installedName)
	if _, err := os.Stat(root); err == nil {
		unlock, err := lockDir(root)
		if err != nil {
			return err
		}
		defer unlock()
	}
	return errors.Join(removeIfThere(in.Path+manifestSuffix), removeIfThere(in.Path), syncDir(dir), os.RemoveAll(filepath.Join(root, name)))
}

// Verify checks an installed plugin as a node would: manifest, protocol, checksum;
// it starts the executable, whose own description must be the manifest's.
func Verify(ctx context.Context, in Installed) error {
	if in.Problem != nil {
		return in.Problem
	}
	p, err := host.Launch(ctx, host.Config{Path: in.Path, Kind: in.Manifest.Kind, SHA256: in.Manifest.SHA256})
	if err != nil {
		return err
	}
	says := p.Manifest()
	says.SHA256 = in.Manifest.SHA256
	err = p.Check(ctx)
	if want, got := asJSON(in.Manifest), asJSON(says); err == nil && want != got {
		err = fmt.Errorf("plugin %s: its manifest is not what it says of itself: install it again", in.Path)
	}
	return errors.Join(err, p.Close())
}

func asJSON(m plugin.Manifest) string {
	data, _ := json.Marshal(m) // plain data: it cannot fail
	return string(data)
}

// copyLimited copies at most limit bytes and fails beyond them.
func copyLimited(to io.Writer, from io.Reader, limit int64) (int64, error) {
	n, err := io.Copy(to, io.LimitReader(from, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return n, err
}
