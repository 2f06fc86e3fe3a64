package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/server"
)

// inLake are the ids of a table's rows in a mode, in order.
func (s *site) inLake(table, mode string) string {
	s.t.Helper()
	lines := strings.Fields(s.mink("", "read", table, "--mode", mode, "--columns", "id", "--format", "csv"))
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// reaches waits until the lake has these ids of a table.
func (s *site) reaches(table, want string) {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for got := ""; got != want; {
		if time.Now().After(deadline) {
			s.t.Fatalf("the lake has %q of %s, want %q", got, table, want)
		}
		_, tier, err := run(s.t, "", "-q", "-b", s.at, "table", "tier", table, "--wait")
		if got = s.inLake(table, "lake"); got != want && err != "" {
			s.t.Log(tier, err)
		}
	}
}

// objects are the files of the store below a directory.
func (s *site) objects(dir string) (files []string) {
	s.t.Helper()
	err := filepath.WalkDir(filepath.Join(s.dir, "objects", dir), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return files
}

// Metadata of before some rounds of tiering are restored, and nothing but the lake shows what
// was written later. A log table goes on behind what the lake has. A primary-key table, which
// the lake has newer keys of, stops with the command that begins it anew.
func TestRestoreUnderTheLake(t *testing.T) {
	s := newSite(t)
	start := func() {
		t.Helper()
		if err := s.try(func(c *server.Config) { c.WALUploadInterval = 1e8 }); err != nil { // ns
			t.Fatal(err)
		}
	}
	start()
	lake := []string{"--option", "lake=true", "--option", "lake_freshness=1s"}
	s.mink("", "db", "create", "shop")
	s.mink("", append([]string{"table", "create", "shop.log", "-C", "id INT", "-C", "item STRING"}, lake...)...)
	s.mink("", append([]string{"table", "create", "shop.rows", "-C", "id INT NOT NULL", "-C", "item STRING", "--primary-key", "id"}, lake...)...)
	s.write(0, 3)
	for _, table := range []string{"shop.log", "shop.rows"} {
		s.reaches(table, "0 1 2 id")
	}
	file := filepath.Join(s.dir, "meta.mink")
	s.mink("", "meta", "export", "--data-dir", s.dir, "-o", file)
	known := s.objects("data")
	s.write(3, 6)
	for _, table := range []string{"shop.log", "shop.rows"} {
		s.reaches(table, "0 1 2 3 4 5 id")
	}
	s.upload()
	for _, path := range s.objects("data") {
		if !slices.Contains(known, path) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Remove(filepath.Join(s.dir, "meta.db")); err != nil {
		t.Fatal(err)
	}
	const command = "mink table alter shop.rows --set lake_generation=1"
	if out := s.mink("", "meta", "restore", "--data-dir", s.dir, file); !strings.Contains(out, "table shop.rows is not tiered to lake any further") ||
		!strings.Contains(out, command) || strings.Contains(out, "table shop.log is not tiered") {
		t.Fatalf("the restore says: %s", out)
	}
	start()
	s.write(9, 10)
	s.reaches("shop.log", "0 1 2 3 4 5 9 id")
	if got := s.inLake("shop.log", "union"); got != "0 1 2 3 4 5 9 id" {
		t.Errorf("lake and log together: %s", got)
	}
	if got, want := s.rows(), "9@6"; !strings.HasSuffix(got, want) {
		t.Errorf("rows of the log %s, want the last one %s", got, want)
	}
	if _, out, errOut := run(t, "", "-q", "-b", s.at, "table", "tier", "shop.rows", "--wait"); !strings.Contains(out+errOut, command) {
		t.Errorf("the table that stopped says %q %q, want the command %q", out, errOut, command)
	}
	if got := s.inLake("shop.rows", "union"); got != "0 1 2 9 id" {
		t.Errorf("lake and log of the table that stopped: %s", got)
	}
	s.mink("", strings.Fields(command)[1:]...)
	if _, out, errOut := run(t, "", "-q", "-b", s.at, "table", "tier", "shop.rows", "--wait"); strings.Contains(out+errOut, "lake_generation") {
		t.Errorf("begun anew it says %q %q", out, errOut)
	}
}
