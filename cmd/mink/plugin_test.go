package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPluginsAreInstalledShownAndRemoved(t *testing.T) {
	dir, source := filepath.Join(t.TempDir(), "plugins"), filepath.Join(t.TempDir(), "any-name")
	manifest := `{"kind":"sink","name":"toy","version":"1.5","stability":"stable","protocols":[1],"summary":"for children",` +
		`"options":[{"name":"colour","doc":"Any.","default":"red"},{"name":"key","doc":"Opens it.","secret":true}]}`
	if err := os.WriteFile(source, []byte("#!/bin/sh\necho '"+manifest+"'\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	ok := func(args ...string) (string, string) {
		t.Helper()
		code, out, errOut := run(t, "", append(append([]string{"plugin"}, args...), "--plugin-dir", dir)...)
		if code != 0 {
			t.Fatalf("plugin %v: exit code %d, %s", args, code, errOut)
		}
		return out, errOut
	}
	if out, note := ok("list"); out != "" || !strings.Contains(note, dir) {
		t.Errorf("%q, %q", out, note)
	}
	if _, note := ok("install", source); !strings.Contains(note, "installed mink-plugin-sink-toy 1.5 (stable) in "+dir) || !strings.Contains(note, `[sinks.NAME] with plugin = "toy"`) {
		t.Error(note)
	}
	out, _ := ok("list", "--json")
	var listed []installedJSON
	if err := json.Unmarshal([]byte(out), &listed); err != nil || len(listed) != 1 || listed[0].Name != "toy" || listed[0].Problem != "" {
		t.Fatalf("%s, %v", out, err)
	}
	out, _ = ok("info", "toy")
	for _, want := range []string{"mink-plugin-sink-toy 1.5", "for children", "colour", "red", "(secret)", "ok"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// It describes itself and is no plugin all the same.
	if code, out, errOut := run(t, "", "plugin", "verify", "--plugin-dir", dir); code != 1 || !strings.Contains(out, "toy") || !strings.Contains(errOut, "1 plugin cannot be used") {
		t.Errorf("exit code %d, %s%s", code, out, errOut)
	}
	if code, _, errOut := run(t, "", "plugin", "test", source, "-o", "colour=blue"); code != 2 || !strings.Contains(errOut, "every check needs an empty place") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	if code, _, errOut := run(t, "", "plugin", "test", source, "-o", "color={dir}"); code != 2 || !strings.Contains(errOut, `no option "color"`) {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	ok("remove", "sink-toy")
	if out, _ := ok("list", "--json"); out != "[]\n" {
		t.Error(out)
	}
}
