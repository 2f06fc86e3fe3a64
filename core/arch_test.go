package core_test

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/mink-project/mink"

// rank is the house's map: a package may import packages of lower ranks only.
// Change the table when the house changes.
var rank = map[string]int{
	"sdk/mink":                0,
	"sdk/objstore":            0,
	"sdk/nearest":             0,
	"core/internal/invariant": 0,
	"core/internal/loop":      0,
	"core/internal/units":     0,
	"sdk/internal/handshake":  0,
	"sdk/internal/pluginpb":   0,
	"sdk/internal/recorder":   0,
	"sdk/sink":                1,
	"sdk/catalog":             1,
	"sdk/internal/wire":       1,
	"sdk/api":                 1,
	"core/record":             1,
	"core/record/row":         1,
	"core/record/merge":       1,
	"core/schema":             1,
	"core/stream/object":      1,
	"core/stream/plan":        1,
	"core/tablet/kv/kvplan":   1,
	"core/cluster/clusterpb":  1,
	"core/cluster":            2,
	"core/kafka/group":        2,
	"sdk/client":              2,
	"sdk/plugin":              2,
	"sdk/host":                3,
	"sdk/plugintest":          4,
	"sdk/examples":            5,
	"sdk/skeleton":            5,
	"core/metalog":            3,
	"core/metalog/memlog":     3,
	"core/metalog/sqllog":     3,
	"core/stream/wal":         3,
	"core/stream":             3,
	"core/tablet":             3,
	"core/builtin/dirstore":   3,
	"core/builtin/memstore":   3,
	"core/builtin/sqlcatalog": 3,
	"core/lake":               3,
	"core/storescan":          4,
	"core/node":               4,
	"core/union":              4,
	"core/coordinator":        4,
	"core/tiering":            4,
	"core/pluginhost":         4,
	"core/peers":              4,
	"core/flight":             5,
	"core/icebergrest":        5,
	"core/kafka":              5,
	"core/ops":                5,
	"core/server":             6,
	"cmd/mink":                7,

	"plugins/internal/cloudstore": 3,
	"plugins/objstore-s3":         7,
	"plugins/objstore-gcs":        7,
	"plugins/objstore-azure":      7,
	"plugins/internal/awsauth":    4,
	"plugins/catalog-rest":        7,
	"plugins/catalog-glue":        7,
}

// sideways lists the imports within one rank.
var sideways = map[string][]string{
	"sdk/internal/wire":   {"sdk/sink", "sdk/catalog"},
	"core/record/row":     {"core/schema"},
	"core/record/merge":   {"core/schema", "core/record/row"},
	"core/stream/object":  {"core/stream/plan"},
	"core/metalog/memlog": {"core/metalog"},
	"core/metalog/sqllog": {"core/metalog"},
	"core/stream":         {"core/stream/wal"},
	"core/tablet":         {"core/stream"},
	"core/node":           {"core/storescan"},
}

// proving packages exist for tests and benchmarks: no shipped package may
// import them, and they may import anything.
var proving = []string{
	"core", "core/fault", "core/internal/codefault", "core/sim", "core/e2e", "core/bench",
	"sdk/host/hosttest", "core/server/servertest", "core/metalog/metalogtest", "core/metalog/faultlog", "core/metalog/pgtest",
	"core/stream/streamtest", "core/stream/plan/plantest", "core/schema/evolve/evolvetest", "core/record/merge/mergetest", "plugins/cloudtest", "deploy",
}

// doors lists, for each heavy dependency, the only packages that may import it.
var doors = map[string][]string{
	"github.com/jackc/pgx":                {"core/metalog/sqllog", "core/builtin/sqlcatalog", "sdk/examples/sink-postgres"}, // the lake's catalog is in the cluster's database; decision 048
	"modernc.org/sqlite":                  {"core/metalog/sqllog", "core/builtin/sqlcatalog"},                               // or in a file beside it, laid out as other clients read it
	"github.com/cockroachdb/pebble":       {"core/tablet/kv"},
	"github.com/apache/iceberg-go":        {"core/lake", "core/icebergrest"}, // the latter for the types of lake's interface
	"github.com/twmb/franz-go":            {"core/kafka", "cmd/mink"},
	"github.com/prometheus/client_golang": {"core/ops"},
	"github.com/hashicorp/go-plugin":      {"sdk/plugin", "sdk/host"},
	"github.com/spf13/cobra":              {"cmd/mink"},
	"github.com/alecthomas/participle":    {"core/schema/predicate"},
	"github.com/knadh/koanf":              {"core/server"},
	"github.com/aws":                      {"plugins/objstore-s3", "plugins/internal/awsauth", "plugins/catalog-rest", "plugins/catalog-glue"},
	"golang.org/x/oauth2":                 {"plugins/catalog-rest"},
	"cloud.google.com/go":                 {"plugins/objstore-gcs"},
	"github.com/Azure":                    {"plugins/objstore-azure"},
}

// pure lists what formats and brains may not import: nothing that can block or
// that differs from run to run.
var pureRanks = []string{"core/record", "core/record/row", "core/record/merge", "core/schema", "core/stream/object", "core/stream/plan", "core/tablet/kv/kvplan", "core/cluster", "core/kafka/group"}

var impure = []string{"net", "net/http", "os", "log", "log/slog", "sync", "math/rand", "math/rand/v2", "crypto/rand"}

type pkg struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

// home answers the longest listed package that the package belongs to: a
// listed package speaks for its unlisted subfolders.
func home(path string) string {
	for p := path; p != "." && p != ""; {
		if _, ok := rank[p]; ok {
			return p
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			return ""
		}
		p = p[:i]
	}
	return ""
}

func under(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func TestArchitecture(t *testing.T) {
	used := map[string]bool{}
	usedSideways := map[string]bool{}
	for _, p := range list(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.ContainsFunc(proving, func(q string) bool { return path == q || (q != "core" && under(path, q)) }) {
			continue
		}
		h := home(path)
		if h == "" {
			t.Errorf("%s is not on the map: give it a rank in core/arch_test.go", path)
			continue
		}
		used[h] = true
		for _, imp := range p.Imports {
			checkDoor(t, path, imp)
			if slices.Contains(pureRanks, h) && slices.Contains(impure, imp) {
				t.Errorf("%s is pure but imports %s", path, imp)
			}
			rel, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			if slices.ContainsFunc(proving, func(q string) bool { return under(rel, q) && q != "core" }) {
				t.Errorf("%s imports %s, which exists for tests only", path, rel)
				continue
			}
			if strings.HasPrefix(path, "sdk/") && !strings.HasPrefix(rel, "sdk/") && h != "sdk/client" {
				t.Errorf("%s imports %s: sdk imports nothing but sdk", path, rel)
			}
			if strings.HasPrefix(path, "plugins/") && !strings.HasPrefix(rel, "sdk/") && !strings.HasPrefix(rel, "plugins/internal/") {
				t.Errorf("%s imports %s: a plugin imports nothing but sdk", path, rel)
			}
			g := home(rel)
			switch {
			case g == "" || g == h:
			case rank[g] < rank[h]:
			case slices.Contains(sideways[h], g):
				usedSideways[h+" "+g] = true
			default:
				t.Errorf("%s (rank %d) imports %s (rank %d)", path, rank[h], rel, rank[g])
			}
		}
	}
	for _, r := range slices.Sorted(maps.Keys(rank)) {
		if !used[r] {
			t.Errorf("core/arch_test.go lists %s, which no package uses", r)
		}
	}
	for from, tos := range sideways {
		for _, to := range tos {
			if !usedSideways[from+" "+to] {
				t.Errorf("the sideways edge %s -> %s is not used", from, to)
			}
		}
	}
}

func checkDoor(t *testing.T, path, imp string) {
	t.Helper()
	for dep, allowed := range doors {
		if !under(imp, dep) {
			continue
		}
		if !slices.ContainsFunc(allowed, func(a string) bool { return under(path, a) }) {
			t.Errorf("%s imports %s; its door is %s", path, imp, strings.Join(allowed, ", "))
		}
	}
}
