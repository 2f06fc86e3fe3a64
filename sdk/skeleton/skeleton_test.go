package skeleton_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/skeleton"
)

func TestWriteRefuses(t *testing.T) {
	taken, foreign := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "go.mod"), []byte("module example.com/other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := skeleton.Request{Kind: "sink", Name: "mine", Dir: filepath.Join(t.TempDir(), "new"), SDK: "../.."}
	for _, c := range []struct {
		change func(*skeleton.Request)
		want   error
		text   string
	}{
		{func(r *skeleton.Request) { r.Kind = "door" }, skeleton.ErrRequest, `kind "door"`},
		{func(r *skeleton.Request) { r.Name = "../x" }, skeleton.ErrRequest, `name "../x"`},
		{func(r *skeleton.Request) { r.Name = "" }, skeleton.ErrRequest, "name"},
		{func(r *skeleton.Request) { r.Kind, r.Name = "objstore", "3s" }, skeleton.ErrRequest, "begins with a letter"},
		{func(r *skeleton.Request) { r.SDK = foreign }, skeleton.ErrRequest, "no checkout of Mink"},
		{func(r *skeleton.Request) { r.SDK = taken }, skeleton.ErrRequest, "no checkout of Mink"},
		{func(r *skeleton.Request) { r.Dir = taken }, os.ErrExist, ""},
	} {
		r := good
		c.change(&r)
		if _, err := skeleton.Write(r); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, err := os.Stat(good.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("a refused request made the directory")
	}
}

func TestWritePutsTheNameIn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	names, err := skeleton.Write(skeleton.Request{Kind: "sink", Name: "my-lake2", Dir: dir, SDK: "../.."})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		data, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "skeleton") {
			t.Errorf("%s still says skeleton", n)
		}
		if n == "main.go" && !strings.Contains(string(data), `Name: "my-lake2"`) {
			t.Errorf("%s:\n%s", n, data)
		}
	}
}
