package cloudtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/plugin"
)

// CheckManual compares the table of options in docs/plugins.md with the plugin's.
func CheckManual(t *testing.T, p plugin.ObjectStore) {
	t.Helper()
	CheckOptions(t, p.Info)
}

// CheckOptions is CheckManual for any plugin.
func CheckOptions(t *testing.T, info plugin.Info) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository(), "docs", "plugins.md"))
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| option of " + info.Name + " | default | meaning |\n| --- | --- | --- |\n")
	for _, o := range info.Options {
		secret := ""
		if o.Secret {
			secret = " (secret)"
		}
		fmt.Fprintf(&table, "| `%s`%s | %s | %s |\n", o.Name, secret, o.Default, o.Doc)
	}
	if !strings.Contains(string(text), "\n"+table.String()+"\n") {
		t.Errorf("docs/plugins.md lacks this table, followed by an empty line:\n%s", table.String())
	}
}
