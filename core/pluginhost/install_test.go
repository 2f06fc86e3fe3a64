package pluginhost_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/pluginhost"
	sdkhost "github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/host/hosttest"
	"github.com/mink-project/mink/sdk/plugin"
)

const memFile = "mink-plugin-objstore-mem"

// executable is a real plugin, with no manifest beside it.
func executable(t *testing.T, behaviour string) string {
	t.Helper()
	path := hosttest.Install(t, t.TempDir(), behaviour)
	if err := os.Remove(path + ".json"); err != nil {
		t.Fatal(err)
	}
	return path
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// script is a small executable that prints a manifest.
func script(t *testing.T, dir, manifest string) string {
	t.Helper()
	path := filepath.Join(dir, "any-name")
	write(t, path, "#!/bin/sh\necho '"+manifest+"'\n", 0o700)
	return path
}

func install(t *testing.T, req pluginhost.InstallRequest) pluginhost.Installed {
	t.Helper()
	in, err := pluginhost.Install(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if in.Problem != nil {
		t.Fatal(in.Problem)
	}
	return in
}

func discover(t *testing.T, dir string) []pluginhost.Installed {
	t.Helper()
	all, err := pluginhost.Discover([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestInstallVerifyRemove(t *testing.T) {
	dir, source := filepath.Join(t.TempDir(), "new", "plugins"), executable(t, "mem")
	in := install(t, pluginhost.InstallRequest{Source: source, Dir: dir, Kind: plugin.KindObjectStore})
	sum := sha256.Sum256(readFile(t, source))
	if in.Manifest.Name != "mem" || in.Path != filepath.Join(dir, memFile) || in.Manifest.SHA256 != hex.EncodeToString(sum[:]) {
		t.Fatalf("%+v", in)
	}
	if err := pluginhost.Verify(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	install(t, pluginhost.InstallRequest{Source: source, Dir: dir}) // again
	all := discover(t, dir)
	if len(all) != 1 || all[0].Problem != nil {
		t.Fatalf("%+v", all)
	}
	versions, err := os.ReadDir(filepath.Join(dir, ".installed", memFile))
	if err != nil || len(versions) != 2 {
		t.Errorf("older versions stay: %v, %v", versions, err)
	}
	found, err := pluginhost.Find(all, "objstore-mem")
	if err != nil {
		t.Fatal(err)
	}
	if err := pluginhost.Remove(found); err != nil {
		t.Fatal(err)
	}
	if left := discover(t, dir); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	if _, err := pluginhost.Find(nil, "mem"); err == nil || !strings.Contains(err.Error(), "mink plugin list") {
		t.Error(err)
	}
}

func TestInstallReplacesWhatMakePluginsWrote(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mink-plugin-objstore-toy"), "#!/bin/sh\n", 0o700)
	write(t, filepath.Join(dir, "mink-plugin-objstore-toy.json"), toy, 0o600)
	in := install(t, pluginhost.InstallRequest{Source: script(t, t.TempDir(), strings.Replace(toy, `"1"`, `"2"`, 1)), Dir: dir})
	if all := discover(t, dir); len(all) != 1 || all[0].Manifest.Version != "2" || in.Manifest.Version != "2" {
		t.Fatalf("%+v", all)
	}
}

func TestVerifyFindsAChangedExecutable(t *testing.T) {
	dir := t.TempDir()
	in := install(t, pluginhost.InstallRequest{Source: executable(t, "mem"), Dir: dir})
	f, err := os.OpenFile(in.Path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if err := pluginhost.Verify(t.Context(), in); !errors.Is(err, sdkhost.ErrChecksum) {
		t.Fatal(err)
	}
}

func TestInstallRefuses(t *testing.T) {
	manifest := func(change ...string) string { return strings.NewReplacer(change...).Replace(toy) }
	for name, c := range map[string]struct {
		manifest, beside, kind, sum string
		want                        string
	}{
		"wrong kind":            {manifest: toy, kind: plugin.KindSink, want: `of the kind "objstore"; one of the kind "sink"`},
		"unknown kind":          {manifest: manifest("objstore", "door"), want: `kind is "door"`},
		"future protocol":       {manifest: manifest("[1]", "[9]"), want: "speaks plugin protocol 9 and this Mink speaks 1"},
		"no manifest":           {manifest: "hello", want: "not the JSON"},
		"wrong checksum":        {manifest: toy, sum: strings.Repeat("0", 64), want: "nothing was run"},
		"manifest's checksum":   {manifest: toy, beside: manifest(`"1"`, `"1","sha256":"`+strings.Repeat("0", 64)+`"`), want: "the manifest beside it says"},
		"manifest of another":   {manifest: toy, beside: manifest(`"toy","v`, `"tin","v`), want: "the manifest beside it is of mink-plugin-objstore-tin 1"},
		"manifest of a version": {manifest: toy, beside: manifest(`"1"`, `"7"`), want: "mink-plugin-objstore-toy 7"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
			source := script(t, t.TempDir(), c.manifest)
			if c.sum != "" {
				write(t, source, "#!/bin/sh\ntouch "+ran+"\n", 0o700)
			}
			if c.beside != "" {
				write(t, source+".json", c.beside, 0o600)
			}
			_, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: source, Dir: dir, Kind: c.kind, SHA256: c.sum})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("it was run before its checksum was checked")
			}
			if left := discover(t, dir); len(left) != 0 {
				t.Errorf("installed all the same: %+v", left)
			}
		})
	}
}

// Between the checksum and the copy somebody writes another plugin into the file:
// what is read is what was hashed.
func TestChecksumIsOfWhatIsInstalled(t *testing.T) {
	dir, staging := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "plugin")
	good := []byte("#!/bin/sh\necho the one that was checked\n")
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(good)
	f, err := pluginhost.OpenSource(path, staging, hex.EncodeToString(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho another, longer than the first one was\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, good) {
		t.Errorf("%q, %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(staging); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestChecksumsOfEveryKindOfFile(t *testing.T) {
	plain := script(t, t.TempDir(), toy)
	packed := member{name: "mink-plugin-objstore-toy", content: string(readFile(t, plain))}
	for _, source := range []string{plain, targz(t, packed), zipped(t, packed)} {
		sum := sha256.Sum256(readFile(t, source))
		in := install(t, pluginhost.InstallRequest{Source: source, Dir: t.TempDir(), SHA256: strings.ToUpper(hex.EncodeToString(sum[:]))})
		if in.Manifest.Name != "toy" {
			t.Errorf("%s: %+v", source, in)
		}
		dir := t.TempDir()
		sum[7]++
		_, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: source, Dir: dir, SHA256: hex.EncodeToString(sum[:])})
		if !errors.Is(err, sdkhost.ErrChecksum) || len(discover(t, dir)) != 0 {
			t.Errorf("%s: %v", source, err)
		}
	}
	_, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: t.TempDir(), Dir: t.TempDir(), SHA256: strings.Repeat("0", 64)})
	if err == nil || !strings.Contains(err.Error(), "this is a directory") {
		t.Error(err)
	}
}

// member is a file of an archive.
type member struct {
	name, content string
	link          string // a symbolic link to it
	hard          bool   // a hard link
	zeros         int64  // that many of them
}

func targz(t *testing.T, members ...member) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin.tar.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Mode: 0o4755, Size: int64(len(m.content)) + m.zeros, Typeflag: tar.TypeReg}
		if m.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, m.link
		}
		if m.hard {
			h.Typeflag = tar.TypeLink
		}
		err = errors.Join(err, w.WriteHeader(h))
		_, werr := io.Copy(w, io.MultiReader(strings.NewReader(m.content), io.LimitReader(zeros{}, m.zeros)))
		err = errors.Join(err, werr)
	}
	if err := errors.Join(err, w.Close(), z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func zipped(t *testing.T, members ...member) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		h.SetMode(0o755)
		if m.link != "" {
			h.SetMode(os.ModeSymlink | 0o777)
			m.content = m.link
		}
		f, err := w.CreateHeader(h)
		if err == nil {
			_, err = io.Copy(f, io.MultiReader(strings.NewReader(m.content), io.LimitReader(zeros{}, m.zeros)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plugin.zip")
	write(t, path, b.String(), 0o600)
	return path
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestInstallFromArchivesAndDirectories(t *testing.T) {
	good := "#!/bin/sh\necho '" + toy + "'\n"
	folder := t.TempDir()
	write(t, filepath.Join(folder, "mink-plugin-objstore-toy"), good, 0o700)
	write(t, filepath.Join(folder, "mink-plugin-objstore-toy.json"), toy, 0o600)
	write(t, filepath.Join(folder, "LICENSE"), "yes", 0o600)
	for name, source := range map[string]string{
		"tar.gz":    targz(t, member{name: "toy-1/README", content: "x"}, member{name: "./toy-1/bin/mink-plugin-objstore-toy", content: good}),
		"zip":       zipped(t, member{name: "README", content: "x"}, member{name: "toy/mink-plugin-objstore-toy", content: good}, member{name: "toy/mink-plugin-objstore-toy.json", content: toy}),
		"directory": folder,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			in := install(t, pluginhost.InstallRequest{Source: source, Dir: dir})
			info, err := os.Stat(in.Path)
			if err != nil || info.Mode() != 0o755 || string(readFile(t, in.Path)) != good {
				t.Errorf("%v, %v", info.Mode(), err)
			}
		})
	}
}

func TestInstallRefusesHostileArchives(t *testing.T) {
	const bytesMax = 1 << 20
	good := member{name: "mink-plugin-objstore-toy", content: "#!/bin/sh\necho '" + toy + "'\n"}
	named := func(n string) member { return member{name: n, content: good.content} }
	cases := map[string]struct {
		members []member
		want    string
	}{
		"parent":      {[]member{named("../mink-plugin-objstore-toy")}, "leads out"},
		"deep parent": {[]member{good, named("a/../../x")}, "leads out"},
		"absolute":    {[]member{named("/tmp/mink-plugin-objstore-toy")}, "leads out"},
		"backslash":   {[]member{named(`..\mink-plugin-objstore-toy`)}, ""},
		"link":        {[]member{{name: "mink-plugin-objstore-toy", link: "/bin/sh"}}, "no regular file"},
		"other link":  {[]member{good, {name: "x", link: "/etc"}}, "no regular file"},
		"twice":       {[]member{good, named("b/mink-plugin-objstore-toy")}, "twice"},
		"two":         {[]member{good, named("mink-plugin-objstore-tin")}, "2 plugins"},
		"none":        {[]member{named("toy")}, "begins with mink-plugin-"},
		"bomb":        {[]member{{name: "mink-plugin-objstore-toy", zeros: bytesMax + 1}}, "more than"},
	}
	for name, c := range cases {
		for kind, archive := range map[string]func(*testing.T, ...member) string{"tar.gz": targz, "zip": zipped} {
			t.Run(name+" "+kind, func(t *testing.T) {
				outside := t.TempDir()
				dir := filepath.Join(outside, "plugins")
				_, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: archive(t, c.members...), Dir: dir, BytesMax: bytesMax})
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "nothing was installed") {
					t.Fatalf("%v, want %q", err, c.want)
				}
				left, err := filepath.Glob(filepath.Join(outside, "*"))
				inside, ierr := filepath.Glob(filepath.Join(dir, ".installed", "*"))
				if err != nil || ierr != nil || len(left) != 1 || len(inside) != 1 || len(discover(t, dir)) != 0 {
					t.Errorf("left behind: %v %v", left, inside)
				}
			})
		}
	}
	t.Run("hard link", func(t *testing.T) {
		source := targz(t, member{name: "mink-plugin-objstore-toy", hard: true})
		if _, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: source, Dir: t.TempDir(), BytesMax: bytesMax}); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Fatal(err)
		}
	})
	t.Run("bomb beside", func(t *testing.T) {
		source := targz(t, member{name: "padding", zeros: bytesMax + 1}, good)
		if _, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: source, Dir: t.TempDir(), BytesMax: bytesMax}); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Fatal(err)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		source := targz(t, good)
		whole := readFile(t, source)
		write(t, source, string(whole[:len(whole)/2]), 0o600)
		if _, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: source, Dir: t.TempDir(), BytesMax: bytesMax}); err == nil {
			t.Fatal("installed")
		}
	})
}

// TestInstallIsAtomic kills processes that install one of two versions, at any
// moment: what is found is always one of them, whole.
func TestInstallIsAtomic(t *testing.T) {
	if source := os.Getenv("TEST_INSTALL_SOURCE"); source != "" {
		for n := 0; ; n++ {
			if _, err := pluginhost.Install(context.Background(), pluginhost.InstallRequest{Source: fmt.Sprint(source, n%2), Dir: os.Getenv("TEST_INSTALL_DIR")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir, sources := t.TempDir(), filepath.Join(t.TempDir(), "v")
	for n := range 2 {
		write(t, fmt.Sprint(sources, n), "#!/bin/sh\n# "+fmt.Sprint(n)+"\necho '"+strings.Replace(toy, `"1"`, fmt.Sprintf(`"%d"`, n), 1)+"'\n", 0o700)
	}
	install(t, pluginhost.InstallRequest{Source: sources + "0", Dir: dir})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for round := range 25 {
		cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestInstallIsAtomic$")
		cmd.Env = append(os.Environ(), "TEST_INSTALL_SOURCE="+sources, "TEST_INSTALL_DIR="+dir)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(time.Duration(20+round*3) * time.Millisecond)
			_ = cmd.Process.Kill()
		})
		_ = cmd.Wait()
		wg.Wait()
		if strings.Contains(out.String(), "FAIL") {
			t.Fatalf("%s", out.String())
		}
		all := discover(t, dir)
		if len(all) != 1 || all[0].Problem != nil {
			t.Fatalf("round %d: %+v", round, all)
		}
		if sum, err := sdkhost.Checksum(all[0].Path); err != nil || sum != all[0].Manifest.SHA256 {
			t.Fatalf("round %d: executable %s, manifest %s, %v", round, sum, all[0].Manifest.SHA256, err)
		}
		seen[all[0].Manifest.Version]++
	}
	install(t, pluginhost.InstallRequest{Source: sources + "1", Dir: dir})
	if left, err := filepath.Glob(filepath.Join(dir, ".installed", "staging-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	t.Logf("after 25 kills: versions %v", seen)
}
