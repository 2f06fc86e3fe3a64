package pluginhost

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
)

// Limits of what is taken from an archive or a directory.
const (
	installBytesMax   = 256 << 20 // InstallRequest.BytesMax by default
	installEntriesMax = 10_000
)

// collect copies the executable of a request's source, and a manifest beside it,
// into staging. Of an archive nothing else is written, whatever it holds.
func collect(req InstallRequest, staging string) (string, error) {
	info, err := os.Stat(req.Source)
	if err != nil {
		return "", err
	}
	c := &collector{staging: staging, bytesMax: req.BytesMax}
	if c.bytesMax == 0 {
		c.bytesMax = installBytesMax
	}
	c.left = c.bytesMax
	if info.IsDir() {
		if req.SHA256 != "" {
			return "", errors.New("a checksum is of a file, and this is a directory")
		}
		err = c.directory(req.Source)
	} else {
		if !info.Mode().IsRegular() {
			return "", errors.New("it is no regular file")
		}
		var f *os.File
		if f, err = c.source(req.Source, req.SHA256); err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }()
		switch lower := strings.ToLower(req.Source); {
		case strings.HasSuffix(lower, ".tar.gz"), strings.HasSuffix(lower, ".tgz"):
			err = c.tarGz(f)
		case strings.HasSuffix(lower, ".zip"):
			err = c.zip(f)
		default:
			return c.executable(req.Source, f)
		}
	}
	if err != nil {
		return "", err
	}
	return c.only()
}

// source opens the file to install from. One that must have a checksum is copied
// first, to where nobody else writes, and the copy is what is hashed and read from
// then on: whoever may write to the original can change it at any moment.
func (c *collector) source(path, sum string) (*os.File, error) {
	f, err := os.Open(path) //nolint:gosec // the user's choice
	if err != nil || sum == "" {
		return f, err
	}
	defer func() { _ = f.Close() }()
	own, err := os.CreateTemp(c.staging, "source-")
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	_, err = copyLimited(io.MultiWriter(own, h), f, c.bytesMax)
	if got := hex.EncodeToString(h.Sum(nil)); err == nil && !strings.EqualFold(got, sum) {
		err = fmt.Errorf("%w: it has sha256 %s, wanted is %s; nothing was run", host.ErrChecksum, got, strings.ToLower(sum))
	}
	_, seekErr := own.Seek(0, io.SeekStart)
	if err = errors.Join(err, seekErr, os.Remove(own.Name())); err != nil {
		_ = own.Close()
		return nil, err
	}
	return own, nil
}

type collector struct {
	staging  string
	bytesMax int64
	left     int64 // bytes that may still come
	entries  int
	names    []string // of the staged files
}

// only is the one executable that was found.
func (c *collector) only() (string, error) {
	var found []string
	for _, n := range c.names {
		if !strings.HasSuffix(n, manifestSuffix) {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("there is no file in it whose name begins with %s", plugin.FilePrefix)
	case 1:
		return filepath.Join(c.staging, found[0]), nil
	}
	slices.Sort(found)
	return "", fmt.Errorf("there are %d plugins in it (%s): install them one by one, by their files", len(found), strings.Join(found, ", "))
}

// executable copies a single file, under its own name, and the manifest beside it.
func (c *collector) executable(source string, f io.Reader) (string, error) {
	name := filepath.Base(source)
	if err := c.take(name, f); err != nil {
		return "", err
	}
	if _, err := os.Stat(source + manifestSuffix); err == nil {
		if err := c.file(source+manifestSuffix, name+manifestSuffix); err != nil {
			return "", err
		}
	}
	return filepath.Join(c.staging, name), nil
}

func (c *collector) file(source, name string) error {
	f, err := os.Open(source) //nolint:gosec // the user's choice
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return c.take(name, f)
}

func (c *collector) directory(source string) error {
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(source, e.Name())) // what make plugins and install leave may be links
		if err != nil || !info.Mode().IsRegular() || !strings.HasPrefix(e.Name(), plugin.FilePrefix) {
			continue
		}
		if err := c.file(filepath.Join(source, e.Name()), e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// take writes one staged file.
func (c *collector) take(name string, from io.Reader) error {
	if slices.Contains(c.names, name) {
		return fmt.Errorf("%q is in it twice", name)
	}
	f, err := os.OpenFile(filepath.Join(c.staging, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755) //nolint:gosec // an executable
	if err != nil {
		return err
	}
	n, err := copyLimited(f, from, c.left)
	c.left -= n
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.names = append(c.names, name)
	return nil
}

// entry looks at one member of an archive. Members that an honest archive of a
// plugin does not have are refused rather than passed over: somebody made them.
func (c *collector) entry(name string, mode fs.FileMode, from io.Reader) error {
	if c.entries++; c.entries > installEntriesMax {
		return fmt.Errorf("more than %d files", installEntriesMax)
	}
	if !filepath.IsLocal(filepath.FromSlash(strings.TrimSuffix(name, "/"))) || strings.ContainsAny(name, "\\\x00") {
		return fmt.Errorf("the name %.200q leads out of the archive", name)
	}
	switch {
	case mode.IsDir():
		return nil
	case !mode.IsRegular():
		return fmt.Errorf("%.200q is no regular file but a link or a device (%s)", name, mode.Type())
	case strings.HasPrefix(path.Base(name), plugin.FilePrefix):
		return c.take(path.Base(name), from)
	}
	return nil
}

func (c *collector) tarGz(f io.Reader) error {
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	// What is passed over is unpacked all the same.
	all := &io.LimitedReader{R: z, N: c.bytesMax}
	for r := tar.NewReader(all); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			mode := h.FileInfo().Mode()
			if h.Typeflag == tar.TypeLink { // its mode is that of a file
				mode |= fs.ModeIrregular
			}
			err = c.entry(h.Name, mode, r)
		}
		if err != nil && all.N <= 0 {
			return fmt.Errorf("it unpacks to more than %d bytes", c.bytesMax)
		}
		if err != nil {
			return err
		}
	}
}

func (c *collector) zip(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	z, err := zip.NewReader(f, info.Size())
	if err != nil {
		return err
	}
	for _, f := range z.File {
		if err := c.zipEntry(f); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) zipEntry(f *zip.File) error {
	from, err := f.Open()
	if err != nil {
		return fmt.Errorf("%.200q: %w", f.Name, err)
	}
	defer func() { _ = from.Close() }()
	return c.entry(f.Name, f.Mode(), from)
}
