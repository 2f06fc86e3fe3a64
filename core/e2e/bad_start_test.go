package e2e

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// refused starts the process and wants it to end by itself, soon, with an error
// that has all the words; it answers the error.
func refused(t *testing.T, cmd *exec.Cmd, words ...string) string {
	t.Helper()
	log := &tail{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !end.Stop() {
		t.Fatalf("the node did not end by itself:\n%s", log)
	}
	if err == nil {
		t.Fatalf("the node ended without an error:\n%s", log)
	}
	text := log.String()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the error lacks %q:\n%s", w, text)
		}
	}
	if strings.Contains(text, "goroutine ") {
		t.Errorf("a panic:\n%s", text)
	}
	return text
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"listen", "kafka_listen", "http_listen"} {
		n := newNode(t)
		address := map[string]string{"listen": n.flight, "kafka_listen": n.kafka, "http_listen": n.http}[key]
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		refused(t, n.command(), key, address, "in use", "choose another")
		_ = l.Close()
		n.start() // nothing was left locked
		n.stop()
	}
}

func TestSecondProcessOnTheSameData(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.kcat([]byte("x\n"), "-P", "-t", "mine")
	other := newNode(t)
	other.dir = n.dir
	refused(t, other.command(), filepath.Join(n.dir, "data"), "another mink process", "--data-dir")
	if got := n.wholeTopic("mine"); string(got) != "x\n" {
		t.Fatalf("the first process has %s", quote(got))
	}
	n.kill()
	other.start() // the lock went with the process
	if got := other.wholeTopic("mine"); string(got) != "x\n" {
		t.Fatalf("the second process has %s", quote(got))
	}
	other.stop()
}

// asNobody makes the process another user's when this one is root, for whom
// nothing is read-only.
func asNobody(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// openDir is a directory that every user can reach, with a copy of the binary.
func openDir(t *testing.T) (dir, exe string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mink-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	in, err := os.Open(minkBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	exe = filepath.Join(dir, "mink")
	out, err := os.OpenFile(exe, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, exe
}

func TestReadOnlyDataDirectory(t *testing.T) {
	t.Parallel()
	dir, exe := openDir(t)
	n := newNode(t)
	n.dir = dir
	readOnly := func() *exec.Cmd {
		cmd := n.command()
		cmd.Path = exe
		asNobody(t, cmd)
		return cmd
	}
	if os.Getuid() != 0 {
		if err := os.Chmod(dir, 0o555); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chmod(dir, 0o755) }()
		refused(t, readOnly(), filepath.Join(dir, "data"), "permission denied", "--data-dir")
		return
	}
	refused(t, readOnly(), filepath.Join(dir, "data"), "permission denied", "--data-dir") // it cannot be made
	n.start()
	n.kcat([]byte("kept\n"), "-P", "-t", "kept")
	n.kill()
	refused(t, readOnly(), filepath.Join(dir, "data"), "permission denied", "--data-dir") // it is there and another's
	n.start()
	if got := n.wholeTopic("kept"); string(got) != "kept\n" {
		t.Fatalf("the topic has %s", quote(got))
	}
	n.stop()
}

// A file system that is read-only, for root as well.
func TestReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mountData("size=64m")
	n.start()
	n.kcat([]byte("kept\n"), "-P", "-t", "kept")
	n.kill()
	data := filepath.Join(n.dir, "data")
	remount := func(options string) {
		t.Helper()
		run(t, nil, "mount", "-o", "remount,"+options, data)
	}
	remount("ro")
	refused(t, n.command(), data, "read-only", "remount")
	remount("rw")
	n.start()
	if got := n.wholeTopic("kept"); string(got) != "kept\n" {
		t.Fatalf("the topic has %s", quote(got))
	}
	n.stop()
}

// mountData puts a small file system of its own below the node's data.
func (n *node) mountData(options string) {
	n.t.Helper()
	data := filepath.Join(n.dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if _, errOut, err := try(n.t, nil, "mount", "-t", "tmpfs", "-o", options, "tmpfs", data); err != nil {
		n.t.Skipf("cannot mount a tmpfs here: %v: %s", err, errOut)
	}
	n.t.Cleanup(func() {
		n.kill()
		if err := exec.Command("umount", data).Run(); err != nil {
			n.t.Errorf("umount %s: %v", data, err)
		}
	})
}

func TestConfigurationMistakes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	config := filepath.Join(n.dir, "mink.toml")
	if err := os.WriteFile(config, []byte("wal_uplaod_interval = \"1s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, n.command("--config", config), "wal_uplaod_interval", "unknown configuration key", "wal_upload_interval")
	refused(t, n.command("--wal-uplaod-interval", "1s"), "wal-uplaod-interval", "unknown flag")
	n.env = []string{"MINK_LISTNE=127.0.0.1:1"}
	refused(t, n.command(), "listne", "unknown configuration key", "listen")
	n.env = nil
	refused(t, n.command("--wal-upload-interval", "soon"), "wal_upload_interval", "soon")
	n.env = []string{"MINK_PLUGIN_DIR=" + t.TempDir()} // bin/plugins may have one
	refused(t, n.command("--storage-uri", "s3://bucket"), "no plugin opens s3://", "mink plugin install")
	if _, err := os.Stat(filepath.Join(n.dir, "data", "objects")); err == nil {
		t.Error("a node that was refused its configuration made an object store")
	}
}

// Beyond loopback only with --insecure, on each listener.
func TestInsecureRule(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--listen", "--kafka-listen", "--http-listen"} {
		n := newNode(t)
		_, port, _ := net.SplitHostPort(map[string]string{"--listen": n.flight, "--kafka-listen": n.kafka, "--http-listen": n.http}[flag])
		refused(t, n.command(flag, "0.0.0.0:"+port), "0.0.0.0:"+port, "beyond loopback", "--insecure")
		refused(t, n.command(flag, ":"+port), "beyond loopback", "--insecure")
	}
	n := newNode(t)
	_, port, _ := net.SplitHostPort(n.kafka)
	n.flags = []string{"--kafka-listen", "0.0.0.0:" + port, "--kafka-advertise", n.kafka, "--insecure"}
	n.start()
	n.kcat([]byte("x\n"), "-P", "-t", "open")
	if log := n.stderr.String(); !strings.Contains(log, "--insecure") {
		t.Errorf("no warning that the listener is open:\n%s", log)
	}
	n.stop()
}
