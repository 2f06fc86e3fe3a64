package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/plugintest"
	"github.com/mink-project/mink/sdk/skeleton"
)

func pluginCommand(a *app) *cobra.Command {
	dirs := new(string)
	installed := []*cobra.Command{
		pluginListCommand(a, dirs), pluginInfoCommand(a, dirs), pluginInstallCommand(a, dirs), pluginRemoveCommand(a, dirs), pluginVerifyCommand(a, dirs),
	}
	for _, cmd := range installed {
		cmd.Flags().StringVar(dirs, "plugin-dir", "", "directories with plugins, separated by colons; default: the configuration's plugin_dir")
	}
	return group("plugin", "List, install, check, write and test plugins", append(installed, pluginNewCommand(a), pluginTestCommand(a))...)
}

func pluginNewCommand(a *app) *cobra.Command {
	var dir, sdk string
	cmd := &cobra.Command{
		Use: "new KIND NAME", Short: "Write the skeleton of a plugin: a Go module that builds and passes its tests",
		Long: `Writes a Go module with a working plugin to start from. KIND is sink, objstore or
catalog. The module requires Mink's SDK with a replace directive that points to --sdk, a checkout of Mink's
repository. Go, and the modules that Mink itself needs, are all it takes.`,
		Example: `  mink plugin new sink mine --sdk ~/mink
  cd mink-plugin-sink-mine
  go build -o mink-plugin-sink-mine .
  mink plugin test ./mink-plugin-sink-mine --option dir={dir}`,
		Args: exactArgs(2, "a kind and a name"),
		RunE: func(_ *cobra.Command, args []string) error {
			req := skeleton.Request{Kind: args[0], Name: args[1], Dir: dir, SDK: sdk}
			if req.Dir == "" {
				req.Dir = "mink-plugin-" + req.Kind + "-" + req.Name
			}
			files, err := skeleton.Write(req)
			if errors.Is(err, skeleton.ErrRequest) {
				return &usageError{err}
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"dir": req.Dir, "files": files})
			}
			place := "--option dir={dir}"
			if req.Kind == plugin.KindObjectStore {
				place = "--uri " + req.Name + "://bucket/{name}"
			}
			file := plugin.Manifest{Kind: req.Kind, Name: req.Name}.FileName()
			a.note("%s: %s\nnext: cd %s && go build -o %s . && mink plugin test ./%s %s", req.Dir, strings.Join(files, ", "), req.Dir, file, file, place)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory to make; default mink-plugin-KIND-NAME here")
	cmd.Flags().StringVar(&sdk, "sdk", ".", "checkout of Mink's repository")
	cmd.ValidArgsFunction = cobra.FixedCompletions(skeleton.Kinds(), cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

func pluginTestCommand(a *app) *cobra.Command {
	var options []string
	var uri, run string
	cmd := &cobra.Command{
		Use: "test EXECUTABLE", Short: "Run the conformance kit of its kind on a plugin",
		Long: `Asks the executable what kind of plugin it is and runs that kind's conformance
kit on it, through processes of it that the kit also kills. Each check gets a
place of its own: in options and in the URI, {dir} stands for a new empty
directory and {name} for a new name of a-z, 0-9 and hyphens. In a catalog each check
has namespaces of its own, minktest_..., and drops them. Exits 1 when a check fails.`,
		Example: `  mink plugin test ./mink-plugin-sink-jsonl --option dir={dir}
  mink plugin test ./mink-plugin-objstore-s3 --uri s3://bucket/{name} --option region=eu-west-1
  mink plugin test ./mink-plugin-catalog-rest --option uri=http://127.0.0.1:8181`,
		Args: exactArgs(1, "an executable"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := testRequest(args[0], uri, run, options)
			if err != nil {
				return err
			}
			began, ran, failed := time.Now(), 0, 0
			m, err := plugintest.Run(cmd.Context(), req, func(r plugintest.Result) {
				if r.Verdict != plugintest.NotApplicable {
					ran++
				}
				if r.Verdict == plugintest.Failed {
					failed++
				}
				a.printTestResult(r)
			})
			switch {
			case errors.Is(err, plugintest.ErrRequest):
				return &usageError{err}
			case err != nil:
				return err
			case ran == 0:
				return usagef("--run %q: no check has such a name", run)
			case failed > 0:
				return fmt.Errorf("%s failed of %d: %s is not conformant", count(int64(failed), "check"), ran, m.FileName())
			}
			a.note("%s %s: %s passed in %s", m.FileName(), m.Version, count(int64(ran), "check"), time.Since(began).Round(100*time.Millisecond))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&options, "option", "o", nil, "option of the plugin as NAME=VALUE; may be given again")
	f.StringVar(&uri, "uri", "", "URI to open, for an object store")
	f.StringVar(&run, "run", "", "regular expression: only the checks whose names match")
	return cmd
}

func testRequest(path, uri, run string, options []string) (plugintest.Request, error) {
	req := plugintest.Request{URI: uri, Options: map[string]string{}}
	for _, o := range options {
		name, value, ok := strings.Cut(o, "=")
		if !ok {
			return req, usagef("--option %q: want NAME=VALUE", o)
		}
		req.Options[name] = value
	}
	if run != "" {
		re, err := regexp.Compile(run)
		if err != nil {
			return req, usagef("--run %q: %w", run, err)
		}
		req.Only = re
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return req, err
	}
	// Many starts, and nobody to hide the rows of a test from.
	req.Host = host.Config{Path: abs, Plaintext: true}
	return req, nil
}

func (a *app) printTestResult(r plugintest.Result) {
	if a.json {
		_ = a.printJSON(r) // a reader that went away does not end the tests
		return
	}
	fmt.Fprintf(a.out, "%-26s %-14s %6.1fs\n", r.Name, r.Verdict, r.Took.Seconds())
	if r.Verdict == plugintest.Failed {
		fmt.Fprintf(a.out, "    %s\n", strings.ReplaceAll(r.Text, "\n", "\n    "))
	}
}
