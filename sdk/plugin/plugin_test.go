package plugin_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

func store() plugin.ObjectStore {
	return plugin.ObjectStore{
		Info: plugin.Info{
			Name: "toy", Version: "1.2.3", Summary: "objects in a toy box", Schemes: []string{"toy"},
			Options: []plugin.Option{
				{Name: "region", Doc: "Where the box stands.", Default: "attic"},
				{Name: "secret_key", Doc: "Opens the box.", Secret: true},
			},
			Env: []string{"TOY_*"},
		},
		Open: func(context.Context, plugin.Config) (objstore.Store, error) { return nil, objstore.ErrUnavailable },
	}
}

func main(t *testing.T, p plugin.Plugin, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	code = plugin.Main(p, args, &o, &e)
	return code, o.String(), e.String()
}

func TestRunByHandItSaysWhatItIs(t *testing.T) {
	code, out, text := main(t, store())
	if code != 2 || out != "" {
		t.Fatalf("exit code %d, stdout %q", code, out)
	}
	for _, want := range []string{
		"mink-plugin-objstore-toy 1.2.3", "an object store (objects in a toy box)", "mink plugin install ./mink-plugin-objstore-toy",
		"--storage-uri toy://", "--describe", "region", "Default: attic.", "secret_key",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if code, help, _ := main(t, store(), "--help"); code != 0 || help != text {
		t.Errorf("--help: exit code %d:\n%s", code, help)
	}
	if code, _, text := main(t, store(), "serve"); code != 2 || !strings.Contains(text, `unknown argument "serve"`) {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	if code, out, _ := main(t, store(), "--version"); code != 0 || out != "mink-plugin-objstore-toy 1.2.3\n" {
		t.Errorf("exit code %d, %q", code, out)
	}
}

func TestDescribePrintsTheManifest(t *testing.T) {
	code, out, errs := main(t, store(), "--describe")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	m, err := plugin.ParseManifest([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(store().Manifest(), m); diff != "" {
		t.Error(diff)
	}
	if m.FileName() != "mink-plugin-objstore-toy" || m.Stability != plugin.Experimental || !m.Secret("secret_key") || m.Secret("region") || !m.Secret("other") {
		t.Errorf("%+v", m)
	}
}

func TestPluginThatCannotBeFoundDoesNotStart(t *testing.T) {
	p := store()
	p.Info.Name, p.Info.Schemes = "Toy Box", nil
	code, _, text := main(t, p, "--describe")
	if code != 1 || !strings.Contains(text, `name is "Toy Box"`) || !strings.Contains(text, "schemes is empty") {
		t.Fatalf("exit code %d: %s", code, text)
	}
}

func TestManifestIsChecked(t *testing.T) {
	good := store().Manifest()
	for _, c := range []struct {
		change func(*plugin.Manifest)
		want   string
	}{
		{func(m *plugin.Manifest) { m.Kind = "door" }, `kind is "door"; known are objstore, sink, catalog`},
		{func(m *plugin.Manifest) { m.Name = "../toy" }, "name is"},
		{func(m *plugin.Manifest) { m.Version = "" }, "version is empty"},
		{func(m *plugin.Manifest) { m.Stability = "rocky" }, `stability is "rocky"`},
		{func(m *plugin.Manifest) { m.Protocols = nil }, "protocols is empty"},
		{func(m *plugin.Manifest) { m.Protocols = []int{0} }, "protocol 0"},
		{func(m *plugin.Manifest) { m.Schemes = []string{"file"} }, "built in"},
		{func(m *plugin.Manifest) { m.Schemes = []string{"S3"} }, `scheme "S3"`},
		{func(m *plugin.Manifest) { m.Options = append(m.Options, m.Options[0]) }, `option "region"`},
		{func(m *plugin.Manifest) { m.Env = []string{"A=B"} }, `variable "A=B"`},
		{func(m *plugin.Manifest) { m.SHA256 = "abc" }, `sha256 is "abc"`},
	} {
		m := good
		m.Options = append([]plugin.Option(nil), good.Options...)
		c.change(&m)
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

func TestOptionsResolve(t *testing.T) {
	m := store().Manifest()
	got, err := m.Resolve(map[string]string{"secret_key": "x"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"region": "attic", "secret_key": "x"}, got); diff != "" {
		t.Error(diff)
	}
	for given, want := range map[string]string{"regoin": "did you mean region?", "colour": "it has region, secret_key"} {
		if _, err := m.Resolve(map[string]string{given: "x"}); err == nil || !strings.Contains(err.Error(), "no option \""+given+"\"; "+want) {
			t.Errorf("%s: %v", given, err)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"kind":"objstore","name":"toy","version":"1","stability":"stable","protocols":[1],"schemes":["toy"],"new":1}`))
	f.Add([]byte(`{"kind":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := plugin.ParseManifest(data)
		if err == nil && (strings.ContainsAny(m.FileName(), "/\x00") || m.Validate() != nil) {
			t.Fatalf("%+v", m)
		}
	})
}
