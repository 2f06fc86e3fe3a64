// Package skeleton writes plugins to start from. What it writes is code of this
// repository, compiled and tested as it stands in the folders below, with another
// name put in.
package skeleton

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed sink objstore catalog
var files embed.FS

// Kinds are the kinds of plugins that there is a skeleton of.
func Kinds() []string { return []string{"sink", "objstore", "catalog"} }

// Request says what to write where.
type Request struct {
	Kind string // one of Kinds
	Name string // of the plugin: a-z, 0-9 and single hyphens
	Dir  string // is made, and must not be there
	// SDK is a checkout of Mink's repository, which the new module requires with a
	// replace directive. It gets its dependencies from there too, so that it builds
	// without a network where Mink does.
	SDK string
}

var nameForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// ErrRequest is a request that cannot be followed.
var ErrRequest = errors.New("invalid")

// word is what stands for the name in the skeletons.
const word = "skeleton"

// Write makes the module and answers its files, sorted.
func Write(req Request) ([]string, error) {
	if !slices.Contains(Kinds(), req.Kind) {
		return nil, fmt.Errorf("%w: there is no skeleton of a plugin of the kind %q, only of: %s", ErrRequest, req.Kind, strings.Join(Kinds(), ", "))
	}
	if !nameForm.MatchString(req.Name) || len(req.Name) > 64 {
		return nil, fmt.Errorf("%w: name %q: want up to 64 of a-z, 0-9 and single hyphens", ErrRequest, req.Name)
	}
	if req.Kind == "objstore" && (req.Name[0] < 'a' || req.Name == "file") {
		return nil, fmt.Errorf("%w: name %q: it becomes the scheme of the store's URIs, which begins with a letter and is not file", ErrRequest, req.Name)
	}
	out := map[string][]byte{}
	entries, err := fs.ReadDir(files, req.Kind)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := files.ReadFile(path.Join(req.Kind, e.Name()))
		if err != nil {
			return nil, err
		}
		out[e.Name()] = bytes.ReplaceAll(data, []byte(word), []byte(req.Name))
	}
	if out["go.mod"], out["go.sum"], err = module(req); err != nil {
		return nil, err
	}
	if err := os.Mkdir(req.Dir, 0o750); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(out))
	for name, data := range out {
		if err := os.WriteFile(filepath.Join(req.Dir, name), data, 0o600); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// sdkModule is the first line of the go.mod of a checkout.
const sdkModule = "github.com/mink-project/mink"

// module makes go.mod and go.sum: those of the SDK under another name.
func module(req Request) (mod, sum []byte, err error) {
	sdk, err := filepath.Abs(req.SDK)
	if err != nil {
		return nil, nil, err
	}
	theirs, err := os.ReadFile(filepath.Join(sdk, "go.mod")) //nolint:gosec // the user names it
	if err == nil && !bytes.HasPrefix(theirs, []byte("module "+sdkModule+"\n")) {
		err = fmt.Errorf("its go.mod is not that of %s", sdkModule)
	}
	if err == nil {
		sum, err = os.ReadFile(filepath.Join(sdk, "go.sum")) //nolint:gosec // as above
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s is no checkout of Mink: %w", ErrRequest, req.SDK, err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "module example.com/mink-plugin-%s-%s\n\n", req.Kind, req.Name)
	fmt.Fprintf(&b, "require %s v0.0.0\n\nreplace %s => %q\n", sdkModule, sdkModule, sdk)
	b.WriteString("\n// What follows is the SDK's own list; go mod tidy leaves what is needed of it.\n")
	keep := false // inside of a require block
	for line := range strings.Lines(string(theirs)) {
		switch {
		case strings.HasPrefix(line, "go "), strings.HasPrefix(line, "toolchain "):
			b.WriteString(line)
		case strings.HasPrefix(line, "require ("):
			keep = true
			b.WriteString(line)
		case keep:
			if !strings.Contains(line, "// indirect") && strings.TrimSpace(line) != ")" {
				line = strings.TrimSuffix(line, "\n") + " // indirect\n"
			}
			b.WriteString(line)
			keep = strings.TrimSpace(line) != ")"
		}
	}
	return b.Bytes(), sum, nil
}
