package pluginhost_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/host/hosttest"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

const toy = `{"kind":"objstore","name":"toy","version":"1","stability":"stable","protocols":[1],"schemes":["toy","tin"]}`

func TestDiscoverSaysWhatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	hosttest.Install(t, dir, "mem")
	write(t, file("mink-plugin-objstore-bare"), "", 0o700)
	write(t, file("mink-plugin-objstore-lost.json"), strings.Replace(toy, "toy", "lost", 1), 0o600)
	write(t, file("mink-plugin-objstore-other"), "", 0o700)
	write(t, file("mink-plugin-objstore-other.json"), toy, 0o600)
	write(t, file("mink-plugin-objstore-broken"), "", 0o700)
	write(t, file("mink-plugin-objstore-broken.json"), "{", 0o600)
	write(t, file("mink-plugin-objstore-new"), "", 0o700)
	write(t, file("mink-plugin-objstore-new.json"), strings.NewReplacer(`"toy",`+`"v`, `"new","v`, "[1]", "[7,8]").Replace(toy), 0o600)
	write(t, file("mink-plugin-objstore-toy"), "", 0o600)
	write(t, file("mink-plugin-objstore-toy.json"), toy, 0o600)
	write(t, file("mink-plugin-objstore-loose"), "", 0o700)
	write(t, file("mink-plugin-objstore-loose.json"), strings.Replace(toy, "toy", "loose", 1), 0o600)
	write(t, file("README"), "not a plugin", 0o600)
	found, err := pluginhost.Discover([]string{dir, filepath.Join(dir, "absent")})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"bare": "has no manifest beside it", "lost": "without its executable", "other": "would have to be the executable's name",
		"broken": "not the JSON", "new": "speaks plugin protocol 7 and 8 and this Mink speaks 1: upgrade Mink", "toy": "chmod +x", "loose": "has no checksum", "mem": "",
	}
	if len(found) != len(want) {
		t.Errorf("%d found, want %d", len(found), len(want))
	}
	for _, in := range found {
		name := strings.TrimPrefix(filepath.Base(in.Path), "mink-plugin-objstore-")
		text := ""
		if in.Problem != nil {
			text = in.Problem.Error()
		}
		if w, ok := want[name]; !ok || (w == "") != (in.Problem == nil) || !strings.Contains(text, w) {
			t.Errorf("%s: %q, want %q", name, text, w)
		}
	}
}

func host(t *testing.T, dirs ...string) *pluginhost.Host {
	t.Helper()
	h, _ := start(t, func(c *pluginhost.Config) { c.Dirs = dirs })
	return h
}

func TestNoPluginSaysWhereItLookedAndWhatToDo(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	hosttest.Install(t, dir, "mem")
	write(t, filepath.Join(dir, "mink-plugin-objstore-toy"), "", 0o700)
	_, err := host(t, empty, dir).FindStore("toy://box", nil)
	var none *pluginhost.NoPluginError
	if !errors.As(err, &none) {
		t.Fatal(err)
	}
	for _, want := range []string{"no plugin opens toy://", empty, dir, "mink plugin install", "--plugin-dir", "has no manifest beside it", "open mem://"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestFirstDirectoryWins(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	hosttest.Install(t, second, "mem")
	path := hosttest.Install(t, first, "mem")
	in, err := host(t, first, second).FindStore("mem://", nil)
	if err != nil || in.Path != path {
		t.Errorf("%+v, %v", in, err)
	}
	found, err := pluginhost.Discover([]string{first, second})
	if err != nil || len(found) != 2 || found[0].Shadowed || !found[1].Shadowed {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestTwoPluginsOfOneSchemeInOneDirectoryAreRefused(t *testing.T) {
	dir := t.TempDir()
	hosttest.Install(t, dir, "mem")
	path := filepath.Join(dir, "mink-plugin-objstore-toy")
	write(t, path, "", 0o700)
	write(t, path+".json", strings.NewReplacer("tin", "mem", "{", `{"sha256":"`+strings.Repeat("0", 64)+`",`).Replace(toy), 0o600)
	_, err := host(t, dir).FindStore("mem://", nil)
	if err == nil || !strings.Contains(err.Error(), "mink-plugin-objstore-mem") || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

func TestDefaultDirs(t *testing.T) {
	got := pluginhost.DefaultDirs("/opt/mink/bin/mink", "/home/ann")
	if want := []string{"/opt/mink/bin/plugins", "/home/ann/.mink/plugins", "/usr/lib/mink/plugins"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
