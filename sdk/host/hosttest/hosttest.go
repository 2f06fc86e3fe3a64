// Package hosttest makes a test's own executable a plugin: good ones and such as
// no host should be harmed by. A test calls Main first of all in TestMain, and
// Install to get an executable of the wanted behaviour.
package hosttest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/internal/handshake"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

// Main runs the process as a plugin, and does not return, when its executable has
// a plugin's name: what follows mink-plugin-objstore- or mink-plugin-catalog- is the
// behaviour.
func Main() {
	if behaviour, ok := strings.CutPrefix(filepath.Base(os.Args[0]), plugin.FilePrefix+plugin.KindCatalog+"-"); ok {
		plugin.Serve(catalogOf(behaviour))
	}
	behaviour, ok := strings.CutPrefix(filepath.Base(os.Args[0]), plugin.FilePrefix+plugin.KindObjectStore+"-")
	if !ok {
		return
	}
	if raw, bad := broken[behaviour]; bad && os.Getenv(handshake.CookieKey) != "" {
		raw()
		os.Exit(3)
	}
	plugin.Serve(good(behaviour))
}

// Install puts a plugin of the behaviour into dir, with its manifest, and answers
// its path. The behaviours:
//
//	mem             objects in memory, one store per URI mem://NAME
//	dir             objects in the directory of dir://PATH; survives its process
//	hold            as dir, hold://PATH; its Puts can be stopped with SetHold
//	opts            refuses to open unless the option token is "right"; needs TEST_PLUGIN_* of the environment
//	sink            says that it is a sink
//	lies            a store whose answers are wrong in the way that the key names
//	leak            takes 32 MiB more memory with every Put
//	stuck           never closes and hangs in Put
//	panics          panics in Put
//	hang, mute      never print anything; mute closes its standard output too
//	garbage, flood  print what is no handshake; flood without an end
//	exit            says why on standard error and ends at once
//	future, past    speak protocol 3, protocol 0
//	deaf            completes the handshake and then does not answer
//	leaves          completes the handshake and ends
//	odd             logs a line on which go-plugin's own reader panics, then ends
func Install(t testing.TB, dir, behaviour string) string {
	t.Helper()
	m := good(behaviour).Manifest()
	if behaviour == "sink" { // the file is found as a store, the process says otherwise
		m.Kind, m.Schemes = plugin.KindObjectStore, []string{"sink"}
	}
	return install(t, dir, m)
}

// install makes the test's executable the plugin of the manifest.
func install(t testing.TB, dir string, m plugin.Manifest) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if m.SHA256, err = checksum(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, m.FileName())
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".json", data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// checksum is this executable's.
var checksum = sync.OnceValues(func() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return host.Checksum(self)
})

// asKind is a store's plugin that says it is something else.
type asKind struct {
	plugin.ObjectStore
	kind string
}

func (p asKind) Manifest() plugin.Manifest {
	m := p.ObjectStore.Manifest()
	m.Kind = p.kind
	return m
}

func good(behaviour string) plugin.Plugin {
	p := plugin.ObjectStore{
		Info: plugin.Info{Name: behaviour, Version: "1.0.0", Schemes: []string{behaviour}},
		Open: openMemory(),
	}
	switch behaviour {
	case "dir":
		p.Info.Options = []plugin.Option{{Name: "token", Doc: "Not looked at.", Secret: true}}
		p.Open = func(ctx context.Context, cfg plugin.Config) (objstore.Store, error) {
			return dirstore.Open(ctx, dirstore.Config{Dir: strings.TrimPrefix(cfg.URI, "dir://")})
		}
	case "hold":
		p.Open = func(ctx context.Context, cfg plugin.Config) (objstore.Store, error) {
			dir := strings.TrimPrefix(cfg.URI, "hold://")
			s, err := dirstore.Open(ctx, dirstore.Config{Dir: dir})
			return &holdStore{Store: s, dir: dir}, err
		}
	case "opts":
		p.Info.Options = []plugin.Option{
			{Name: "token", Doc: "Must be \"right\".", Secret: true}, {Name: "colour", Doc: "Any.", Default: "red"},
		}
		p.Info.Env = []string{"TEST_PLUGIN_*"}
		p.Open = openOptions
	case "sink":
		return asKind{ObjectStore: p, kind: plugin.KindSink}
	case "lies", "leak", "stuck", "panics":
		inner := p.Open
		p.Open = func(ctx context.Context, cfg plugin.Config) (objstore.Store, error) {
			s, err := inner(ctx, cfg)
			return &badStore{Store: s, behaviour: behaviour}, err
		}
	}
	return p
}

func openMemory() func(context.Context, plugin.Config) (objstore.Store, error) {
	return func(context.Context, plugin.Config) (objstore.Store, error) {
		return memstore.New(memstore.Default()), nil
	}
}

func openOptions(_ context.Context, cfg plugin.Config) (objstore.Store, error) {
	switch {
	case cfg.Options["token"] != "right":
		return nil, fmt.Errorf("%w: the token is wrong", objstore.ErrUnauthorized)
	case cfg.Options["colour"] == "":
		return nil, fmt.Errorf("%w: no colour, not even the default", objstore.ErrInvalid)
	case os.Getenv("TEST_PLUGIN_REGION") != "here":
		return nil, fmt.Errorf("%w: the region in the environment is %q", objstore.ErrInvalid, os.Getenv("TEST_PLUGIN_REGION"))
	case os.Getenv("TEST_SECRET") != "":
		return nil, fmt.Errorf("%w: a variable came that was not asked for", objstore.ErrInvalid)
	}
	return memstore.New(memstore.Default()), nil
}

// broken are processes that are no servers at all, or bad ones.
var broken = map[string]func(){
	"hang": func() { select {} },
	"mute": func() { _ = os.Stdout.Close(); sleep() },
	"garbage": func() {
		fmt.Print("\x7fELF\x00\xff not | a | handshake\nand more\n")
		sleep()
	},
	"flood": func() {
		for b := make([]byte, 64<<10); ; {
			if _, err := os.Stdout.Write(b); err != nil {
				return
			}
		}
	},
	"exit": func() {
		fmt.Fprintln(os.Stderr, "the moon is in the wrong house")
		os.Exit(7)
	},
	"future": func() { fmt.Println("1|3|unix|/nowhere|grpc|"); sleep() },
	"past":   func() { fmt.Println("1|0|unix|/nowhere|grpc|"); sleep() },
	"deaf": func() {
		listen()
		sleep()
	},
	"leaves": func() { listen() },
	"odd": func() {
		fmt.Fprintln(os.Stderr, `{"@message": 7, "@level": ["x"], "@timestamp": {}}`)
		fmt.Fprintln(os.Stderr, `{"msg": {"a": 1}, "level": 12}`)
		os.Exit(7)
	},
}

// listen says that it serves, on a socket that nobody accepts from.
func listen() {
	path := filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "s")
	if _, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path); err != nil {
		panic(err)
	}
	fmt.Printf("1|1|unix|%s|grpc|\n", path)
}

func sleep() { time.Sleep(time.Hour) }
