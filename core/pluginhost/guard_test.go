package pluginhost_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/host/hosttest"
)

// loosen lets everybody write to what the path leads to.
func loosen(t *testing.T, path string, more ...os.FileMode) {
	t.Helper()
	mode := os.FileMode(0o777)
	for _, m := range more {
		mode |= m
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func wantUnsafe(t *testing.T, err error, todo string) {
	t.Helper()
	if !errors.Is(err, pluginhost.ErrUnsafe) || !strings.Contains(err.Error(), todo) {
		t.Errorf("%v, want %q", err, todo)
	}
}

func TestPluginsThatOthersCouldReplaceAreNotUsed(t *testing.T) {
	for name, c := range map[string]struct {
		what   string // below the directory above the plugin directory, which everybody may write to
		sticky bool
		safe   bool
	}{
		"the plugin directory":                   {what: "plugins"},
		"the plugin directory, like /tmp":        {what: "plugins", sticky: true},
		"the directory above":                    {what: "."},
		"the directory above, like /tmp":         {what: ".", sticky: true, safe: true},
		"the directory of installed ones":        {what: "plugins/.installed"},
		"the directory of the version":           {what: "plugins/.installed/" + memFile + "/current"},
		"the directory of versions":              {what: "plugins/.installed/" + memFile},
		"the executable":                         {what: "plugins/" + memFile},
		"the manifest":                           {what: "plugins/" + memFile + ".json"},
		"another file, which is not the node's":  {what: "plugins/.installed/lock", safe: true},
		"nothing at all, which must be accepted": {safe: true},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			dir := filepath.Join(above, "plugins")
			install(t, pluginhost.InstallRequest{Source: executable(t, "mem"), Dir: dir})
			path := filepath.Join(above, c.what)
			if c.what != "" {
				sticky := os.FileMode(0)
				if c.sticky {
					sticky = os.ModeSticky
				}
				loosen(t, path, sticky)
			}
			all := discover(t, dir)
			if len(all) != 1 {
				t.Fatalf("%+v", all)
			}
			_, err := host(t, dir).OpenStore(t.Context(), "mem://", nil)
			if c.safe {
				if all[0].Problem != nil || err != nil {
					t.Fatalf("%v, %v", all[0].Problem, err)
				}
				return
			}
			real, linkErr := filepath.EvalSymlinks(path)
			if linkErr != nil {
				t.Fatal(linkErr)
			}
			wantUnsafe(t, all[0].Problem, "chmod o-w "+real)
			if err == nil || !strings.Contains(err.Error(), "chmod o-w "+real) {
				t.Errorf("a node uses it: %v", err)
			}
			wantUnsafe(t, pluginhost.Verify(t.Context(), all[0]), "chmod o-w")
			if err := os.Chmod(real, 0o755); err != nil { // as the error says
				t.Fatal(err)
			}
			if all := discover(t, dir); all[0].Problem != nil {
				t.Error(all[0].Problem)
			}
		})
	}
}

func TestNothingIsInstalledWhereOthersWrite(t *testing.T) {
	for _, sticky := range []os.FileMode{0, os.ModeSticky} {
		dir := t.TempDir()
		loosen(t, dir, sticky)
		_, err := pluginhost.Install(t.Context(), pluginhost.InstallRequest{Source: executable(t, "mem"), Dir: dir})
		wantUnsafe(t, err, "chmod o-w "+dir)
		if left := discover(t, dir); len(left) != 0 {
			t.Errorf("installed all the same: %+v", left)
		}
	}
}

// A running node's plugin is not started again from a directory that was opened to
// everybody meanwhile.
func TestPluginThatBecameUnsafeIsNotStartedAgain(t *testing.T) {
	h, dir := start(t, nil, "mem")
	s := open(t, h, "mem://")
	loosen(t, dir)
	if err := syscall.Kill(pid(t, h), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the reason is said", func() bool {
		return strings.Contains(h.Stats()[0].LastError, "chmod o-w "+dir)
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it serves again", func() bool { return put(t.Context(), s, "k", "v") == nil })
}

// stranger is a user id of nobody here.
const stranger = 65_534

// What belongs to another user than root and the node's is not run. The executable
// of these tests stands in for a plugin's.
func TestPluginsOfOtherUsersAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	path := hosttest.Install(t, dir, "mem")
	if os.Getuid() != 0 { // nothing can be given away: the node is somebody else
		wantUnsafe(t, pluginhost.Guard(path, stranger), "belongs to user")
		return
	}
	for _, what := range []string{dir, path + ".json"} {
		if err := os.Chown(what, stranger, -1); err != nil {
			t.Fatal(err)
		}
		all := discover(t, dir)
		wantUnsafe(t, all[0].Problem, what+" belongs to user 65534, and the node runs as user 0: chown 0 "+what)
		if err := pluginhost.Guard(path, stranger); err != nil {
			t.Errorf("root's and the node's own: %v", err)
		}
		if err := os.Chown(what, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	if all := discover(t, dir); all[0].Problem != nil {
		t.Error(all[0].Problem)
	}
}
