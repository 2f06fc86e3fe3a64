package sqllog_test

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/sqllog"
	"github.com/mink-project/mink/sdk/mink"
)

func openErr(t *testing.T, url string) error {
	t.Helper()
	l, err := sqllog.Open(t.Context(), url, sqllog.Default(), quiet())
	if err == nil {
		check(t, l.Close())
	}
	return err
}

// rawSQL changes a closed log's file behind its back.
func rawSQL(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	check(t, err)
	for _, s := range statements {
		_, err := db.ExecContext(t.Context(), s)
		check(t, err)
	}
	check(t, db.Close())
}

func TestBadURLs(t *testing.T) {
	for _, url := range []string{
		"", "meta.db", "sqlite:", "sqlite://", "sqlite:./dir/", "sqlite::memory:", "sqlite:x.db?vfs=y",
		"mysql://host/db", "postgres://host:notaport/db", "mysql://u:secret@host/db",
	} {
		err := openErr(t, url)
		if !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%q: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error shows the password: %v", url, err)
		}
	}
	err := openErr(t, "sqlite:"+filepath.Join(t.TempDir(), "no", "meta.db"))
	wantErr(t, err, mink.ErrInvalid)
	wantText(t, err, "create it first")
	bad := sqllog.Default()
	bad.Connections = 0
	_, err = sqllog.Open(t.Context(), "sqlite:x.db", bad, quiet())
	wantErr(t, err, mink.ErrInvalid)
}

func TestURLForms(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, url := range []string{"sqlite:./a.db", "sqlite:b.db", "sqlite://./c.db", "sqlite://" + dir + "/d.db", "sqlite:" + dir + "/e.db"} {
		check(t, openErr(t, url))
	}
	for _, name := range []string{"a.db", "b.db", "c.db", "d.db", "e.db"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestSQLiteDamage(t *testing.T) {
	fresh := func(t *testing.T) (path string) {
		path = filepath.Join(t.TempDir(), "meta.db")
		l := openURL(t, "sqlite:"+path)
		for range 3 {
			_, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{[]byte("x")}})
			check(t, err)
		}
		check(t, l.Close())
		return path
	}
	t.Run("not a database", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "meta.db")
		check(t, os.WriteFile(path, bytes.Repeat([]byte("garbage "), 1000), 0o600))
		err := openErr(t, "sqlite:"+path)
		wantErr(t, err, mink.ErrCorrupt)
		wantText(t, err, "not a sound SQLite database")
	})
	t.Run("rows are missing", func(t *testing.T) {
		path := fresh(t)
		rawSQL(t, path, "DELETE FROM meta_log WHERE idx = 3")
		wantErr(t, openErr(t, "sqlite:"+path), mink.ErrCorrupt)
	})
	t.Run("the head is missing", func(t *testing.T) {
		path := fresh(t)
		rawSQL(t, path, "DELETE FROM meta_head")
		wantErr(t, openErr(t, "sqlite:"+path), mink.ErrCorrupt)
	})
	t.Run("newer tables", func(t *testing.T) {
		path := fresh(t)
		rawSQL(t, path, "INSERT INTO meta_schema VALUES (99, 0, 'v9')")
		err := openErr(t, "sqlite:"+path)
		wantErr(t, err, mink.ErrUnsupported)
		wantText(t, err, "schema version 99")
	})
}
