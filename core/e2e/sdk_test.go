package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// skeletonLimit is how long a new sink may take to be written, built and tested,
// in all, once its dependencies are built.
const skeletonLimit = time.Minute

// newUser is a directory with a checkout in "mink", and a shell in it.
type newUser struct {
	t   *testing.T
	dir string
	env []string
}

func newSDKUser(t *testing.T) *newUser {
	t.Helper()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	u := &newUser{t: t, dir: t.TempDir()}
	if err := os.Symlink(root, filepath.Join(u.dir, "mink")); err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(u.dir, "tools")
	if err := os.Mkdir(tools, 0o750); err != nil {
		t.Fatal(err)
	}
	// `make build` was run, and its binary is the one under test.
	if err := os.WriteFile(filepath.Join(tools, "make"), []byte("#!/bin/sh\n[ \"$*\" = build ]\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if err := os.Symlink(minkBinary(t), filepath.Join(tools, "mink")); err != nil {
		t.Fatal(err)
	}
	// Dependencies are the module cache's: a new user's network has them too.
	u.env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	return u
}

// atHome gives the user a home directory of its own, where plugins are installed, and a
// node of its own. Go keeps what it has.
func (u *newUser) atHome() {
	u.t.Helper()
	names := []string{"GOCACHE", "GOENV", "GOMODCACHE", "GOPATH"}
	out, err := exec.CommandContext(u.t.Context(), "go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		u.t.Fatal(err)
	}
	for i, value := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		u.env = append(u.env, names[i]+"="+value)
	}
	at := freeAddress(u.t)
	u.env = append(u.env, "HOME="+u.t.TempDir(), "MINK_LISTEN="+at, "MINK_BOOTSTRAP=grpc://"+at, "MINK_KAFKA_LISTEN=off", "MINK_HTTP_LISTEN=off")
}

func (u *newUser) run(script string) (string, error) {
	ctx, cancel := context.WithTimeout(u.t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = u.dir, u.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestSDKReadmeIsRunAsWritten follows sdk/README.md in one shell, as somebody who
// types, in a module outside of the repository.
func TestSDKReadmeIsRunAsWritten(t *testing.T) {
	u := newSDKUser(t)
	var script strings.Builder
	for _, b := range blocksOf(t, page{file: "sdk/README.md", heading: "## Write and run a sink in ten minutes"}) {
		if b.language != "sh" || !strings.Contains(b.code, "replay, err :=") {
			script.WriteString(b.code)
			continue
		}
		// The line of sink.go that the text shows must be in it.
		script.WriteString("grep -qF '" + strings.TrimSpace(b.code) + "' sink.go\n")
	}
	u.atHome()
	text := strings.ReplaceAll(script.String(), "PATH=$PWD/bin:$PATH", "PATH=$PATH:$PWD/bin") // the binary under test
	out, err := u.run("trap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT\n" + text)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"module example.com/mink-plugin-sink-mine", `"kind": "sink"`, "checks passed in", "StaleBase                  FAILED", "StaleBase                  ok", "ok  \texample.com/mink-plugin-sink-mine",
		"installed mink-plugin-sink-mine", "opened; each row exactly once", `"end":1}`, `"end":200000}`} {
		if !strings.Contains(out, want) {
			t.Errorf("the commands of sdk/README.md print no %q:\n%s", want, out)
		}
	}
	t.Log(out)
}

// TestNewPluginsPassTheirKits times what the manual promises.
func TestNewPluginsPassTheirKits(t *testing.T) {
	u := newSDKUser(t)
	if out, err := u.run("cd mink && go build -o /dev/null ./sdk/skeleton/sink"); err != nil { // the dependencies
		t.Fatalf("%v\n%s", err, out)
	}
	for kind, place := range map[string]string{"sink": "--option dir={dir}", "objstore": "--uri timed-1://bucket/{name}", "catalog": "--option dir={dir}"} {
		began := time.Now()
		out, err := u.run(fmt.Sprintf("mink plugin new %[1]s timed-1 --sdk mink && cd mink-plugin-%[1]s-timed-1 && go build -o mink-plugin-%[1]s-timed-1 . && go vet ./... && mink plugin test ./mink-plugin-%[1]s-timed-1 %[2]s", kind, place))
		took := time.Since(began)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if took > skeletonLimit {
			t.Errorf("a new %s was written, built and tested in %v, want at most %v", kind, took, skeletonLimit)
		}
		t.Logf("a new %s was written, built and tested in %v", kind, took.Round(time.Millisecond))
	}
}
