package sqllog_test

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/metalogtest"
	"github.com/mink-project/mink/core/metalog/sqllog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func openURL(t *testing.T, url string) metalog.Log {
	t.Helper()
	l, err := sqllog.Open(t.Context(), url, sqllog.Default(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSQLiteConformance(t *testing.T) {
	urls := map[metalog.Log]string{}
	metalogtest.Run(t, metalogtest.Options{
		Open: func(t *testing.T) metalog.Log {
			url := "sqlite:" + filepath.Join(t.TempDir(), "a dir%", "meta data.db")
			if err := os.MkdirAll(filepath.Dir(url[len("sqlite:"):]), 0o755); err != nil {
				t.Fatal(err)
			}
			l := openURL(t, url)
			urls[l] = url
			return l
		},
		Reopen: func(t *testing.T, closed metalog.Log) metalog.Log { return openURL(t, urls[closed]) },
	})
}
