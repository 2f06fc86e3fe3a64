// Package cloudtest starts servers that speak the protocols of the clouds, for
// tests, and a proxy that spoils what goes to them. scripts/cloud-servers.sh
// installs the servers.
package cloudtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// RequiredEnv, set to "required", turns a missing server from a skipped test
	// into a failed one.
	RequiredEnv = "MINK_TEST_CLOUD"
	// DirEnv names the folder in which the servers are installed; without it
	// .cache/cloud of the repository.
	DirEnv = "MINK_TEST_CLOUD_DIR"
)

// Credentials of the S3 server.
const (
	AccessKeyID     = "minktest"
	SecretAccessKey = "minktestsecret"
)

// The account of the Azure server; every Azurite has it.
const (
	AzureAccount = "devstoreaccount1"
	AzureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// Server is one running server. Its data outlives a stop, but for GCS's, which
// are in memory.
type Server struct {
	URL string // http://127.0.0.1:PORT
	Dir string // of its data

	program string
	by      string // what runs the program; "": itself
	args    []string
	env     []string

	mu  sync.Mutex
	cmd *exec.Cmd
	out *bytes.Buffer
}

// S3 starts versitygw on a folder, with these buckets in it.
func S3(tb testing.TB, buckets ...string) *Server {
	tb.Helper()
	s := &Server{Dir: tb.TempDir(), program: "bin/versitygw", env: []string{"ROOT_ACCESS_KEY=" + AccessKeyID, "ROOT_SECRET_KEY=" + SecretAccessKey}}
	for _, b := range buckets {
		if err := os.Mkdir(filepath.Join(s.Dir, b), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	port := s.listenOn(tb)
	s.args = []string{"--port", "127.0.0.1:" + port, "--quiet", "--keep-alive", "posix", s.Dir}
	return s.start(tb)
}

// GCS starts fake-gcs-server with these buckets.
func GCS(tb testing.TB, buckets ...string) *Server {
	tb.Helper()
	s := &Server{Dir: tb.TempDir(), program: "bin/fake-gcs-server"}
	for _, b := range buckets {
		if err := os.Mkdir(filepath.Join(s.Dir, b), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	port := s.listenOn(tb)
	s.args = []string{"-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-data", s.Dir, "-log-level", "error",
		"-external-url", s.URL, "-public-host", strings.TrimPrefix(s.URL, "http://")}
	return s.start(tb)
}

// Azure starts Azurite; it has no container yet.
func Azure(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{Dir: tb.TempDir(), program: "azurite/node_modules/.bin/azurite-blob"}
	port := s.listenOn(tb)
	s.args = []string{"--silent", "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", port, "--location", s.Dir}
	return s.start(tb)
}

// IcebergREST starts the reference server of Iceberg REST catalogs. Tables for which
// no place is named go to the directory.
func IcebergREST(tb testing.TB, warehouse string) *Server {
	tb.Helper()
	s := &Server{Dir: warehouse, program: "iceberg-rest"}
	port := s.listenOn(tb)
	java, err := exec.LookPath("java")
	if err != nil {
		s.program = "iceberg-rest/java" // for the message: nothing runs it
	}
	s.by = java
	s.args = []string{"-Xmx512m", "-cp", filepath.Join(installed(), s.program, "*"), "org.apache.iceberg.rest.RESTCatalogServer"}
	// Its default is SQLite in memory, of which each connection has its own.
	s.env = []string{
		"CATALOG_REST_PORT=" + port, "CATALOG_WAREHOUSE=file://" + warehouse, "CATALOG_JDBC_STRICT__MODE=true",
		"CATALOG_URI=jdbc:sqlite:" + filepath.Join(tb.TempDir(), "catalog.db"), "CATALOG_CLIENTS=1",
	}
	return s.start(tb)
}

// Moto starts moto's server, which has Glue and other services of AWS in memory.
func Moto(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{Dir: tb.TempDir(), program: "moto/bin/moto_server"}
	port := s.listenOn(tb)
	s.args = []string{"-H", "127.0.0.1", "-p", port}
	return s.start(tb)
}

// listenOn takes a free port.
func (s *Server) listenOn(tb testing.TB) string {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	s.URL = "http://127.0.0.1:" + port
	return port
}

func (s *Server) start(tb testing.TB) *Server {
	tb.Helper()
	path := filepath.Join(installed(), s.program)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv(RequiredEnv) == "required" {
			tb.Fatalf("%v; scripts/cloud-servers.sh installs it", err)
		}
		tb.Skipf("LEFT OUT: %s is not installed (scripts/cloud-servers.sh does it)", filepath.Base(path))
	}
	if s.program = path; s.by != "" {
		s.program = s.by
	}
	if err := s.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}

// installed is the folder of the servers.
func installed() string {
	if dir := os.Getenv(DirEnv); dir != "" {
		return dir
	}
	return filepath.Join(repository(), ".cache", "cloud")
}

// repository is the root of the module that a test runs in.
func repository() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
	}
	return dir
}

// startTimeout covers Node.js on a busy machine.
const startTimeout = 60 * time.Second

// Start runs a stopped server again, on the same port, and waits until it answers.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.out = new(bytes.Buffer)
	s.cmd = exec.Command(s.program, s.args...) //nolint:noctx // it outlives this call
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			return resp.Body.Close()
		}
		if s.cmd.Process.Signal(syscall.Signal(0)) != nil || ctx.Err() != nil {
			s.kill()
			return errors.Join(fmt.Errorf("%s does not answer at %s: %w; it printed:\n%s", s.program, s.URL, err, s.out), ctx.Err())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Kill stops the server at once, as a power cut would, and waits for its end.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

func (s *Server) kill() {
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // its own process group; gone already is as good
	_ = s.cmd.Wait()
	s.cmd = nil
}
