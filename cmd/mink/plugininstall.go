package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/plugin"
)

// pluginDirs are the directories that the flag names, or else a node's with this
// configuration.
func (a *app) pluginDirs(flag string) ([]string, error) {
	if flag != "" {
		return server.PluginDirs(flag), nil
	}
	cfg, err := server.LoadConfig(a.config, os.Environ, nil)
	if err != nil {
		return nil, &usageError{err}
	}
	return server.PluginDirs(cfg.PluginDir), nil
}

// installDir is where a plugin goes: the first directory of the flag or the
// configuration, else the user's own.
func (a *app) installDir(flag string) (string, error) {
	if flag == "" {
		cfg, err := server.LoadConfig(a.config, os.Environ, nil)
		if err != nil {
			return "", &usageError{err}
		}
		flag = cfg.PluginDir
	}
	if flag != "" {
		return server.PluginDirs(flag)[0], nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usagef("--plugin-dir: name the directory to install into: %w", err)
	}
	return filepath.Join(home, ".mink", "plugins"), nil
}

// installedJSON is one plugin for scripts.
type installedJSON struct {
	File     string `json:"file"`
	Path     string `json:"path"`
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	Shadowed bool   `json:"shadowed,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

func asJSON(in pluginhost.Installed) installedJSON {
	out := installedJSON{
		File: filepath.Base(in.Path), Path: in.Path, Kind: in.Manifest.Kind, Name: in.Manifest.Name,
		Version: in.Manifest.Version, Shadowed: in.Shadowed,
	}
	if in.Problem != nil {
		out.Problem = in.Problem.Error()
	}
	return out
}

func state(in pluginhost.Installed) string {
	switch {
	case in.Problem != nil:
		return in.Problem.Error()
	case in.Shadowed:
		return "shadowed by one of an earlier directory"
	}
	return "ok"
}

func pluginListCommand(a *app, dirs *string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the installed plugins, those that cannot be used too", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			where, all, err := a.discover(*dirs)
			if err != nil {
				return err
			}
			if a.json {
				out := []installedJSON{}
				for _, in := range all {
					out = append(out, asJSON(in))
				}
				return a.printJSON(out)
			}
			if len(all) == 0 {
				a.note("no plugin is installed; searched: %s", strings.Join(where, ", "))
				return nil
			}
			var rows [][]string
			for _, in := range all {
				m := in.Manifest
				rows = append(rows, []string{filepath.Base(in.Path), m.Version, m.Stability, strings.Join(m.Schemes, ", "), filepath.Dir(in.Path), state(in)})
			}
			a.printTable([]string{"plugin", "version", "stability", "schemes", "directory", "state"}, rows)
			return nil
		},
	}
}

func (a *app) discover(flag string) ([]string, []pluginhost.Installed, error) {
	dirs, err := a.pluginDirs(flag)
	if err != nil {
		return nil, nil, err
	}
	all, err := pluginhost.Discover(dirs)
	return dirs, all, err
}

// find is an installed plugin by name.
func (a *app) find(flag, name string) (pluginhost.Installed, error) {
	_, all, err := a.discover(flag)
	if err != nil {
		return pluginhost.Installed{}, err
	}
	return pluginhost.Find(all, name)
}

func pluginInstallCommand(a *app, dirs *string) *cobra.Command {
	var kind, sum string
	cmd := &cobra.Command{
		Use: "install FILE", Short: "Check a plugin and put it where nodes look for it",
		Long: `Installs a plugin from an executable, a directory with one, or an archive with one
(.tar.gz, .tgz, .zip), in the place of an older version. The executable is run with
--describe, and its kind, protocol and checksum are checked; what a manifest beside
it says must be true. Whatever happens, the old version is there whole or the new
one. It goes to the first directory of --plugin-dir or of the configuration's
plugin_dir, else to ~/.mink/plugins. Install only what you trust: a plugin runs as
the node's user.`,
		Example: `  mink plugin install ./mink-plugin-sink-mine
  mink plugin install mink-plugin-objstore-x.tar.gz --sha256 9f86d081884c7d65... --kind objstore`,
		Args: exactArgs(1, "a file or directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := a.installDir(*dirs)
			if err != nil {
				return err
			}
			in, err := pluginhost.Install(cmd.Context(), pluginhost.InstallRequest{Source: args[0], Dir: dir, Kind: kind, SHA256: sum})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(asJSON(in))
			}
			a.note("installed %s %s (%s) in %s", filepath.Base(in.Path), in.Manifest.Version, in.Manifest.Stability, filepath.Dir(in.Path))
			if _, all, err := a.discover(*dirs); err == nil {
				a.noteShadow(in, all)
			}
			if in.Manifest.Kind == plugin.KindSink {
				a.note("next: in the configuration of every node, under a name of your choice, [sinks.NAME] with plugin = %q", in.Manifest.Name)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "refuse a plugin of another kind: objstore, sink or catalog")
	cmd.Flags().StringVar(&sum, "sha256", "", "checksum that the file must have, hexadecimal; nothing is run before it was checked")
	return cmd
}

// noteShadow says when nodes will not use what was just installed.
func (a *app) noteShadow(in pluginhost.Installed, all []pluginhost.Installed) {
	searched := false
	for _, other := range all {
		if other.Path == in.Path {
			searched = true
			if other.Shadowed {
				a.note("note: a plugin of this kind and name in an earlier directory is used instead; mink plugin list shows it")
			}
		}
	}
	if !searched {
		a.note("note: nodes with this configuration do not look there: set plugin_dir")
	}
}

func pluginRemoveCommand(a *app, dirs *string) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove an installed plugin",
		Long: `Removes a plugin by its name, by KIND-NAME, or by its file's name. A node that runs
it goes on until it has to start it again.`,
		Args: exactArgs(1, "a name"),
		RunE: func(_ *cobra.Command, args []string) error {
			in, err := a.find(*dirs, args[0])
			if err != nil {
				return err
			}
			if err := pluginhost.Remove(in); err != nil {
				return err
			}
			return a.done("plugin", filepath.Base(in.Path), "removed from "+filepath.Dir(in.Path))
		},
	}
}

func pluginVerifyCommand(a *app, dirs *string) *cobra.Command {
	return &cobra.Command{
		Use: "verify [NAME]...", Short: "Check installed plugins as a node does: checksum, protocol, a start",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, all, err := a.discover(*dirs)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				picked := []pluginhost.Installed{}
				for _, name := range args {
					in, err := pluginhost.Find(all, name)
					if err != nil {
						return err
					}
					picked = append(picked, in)
				}
				all = picked
			}
			var bad []error
			for _, in := range all {
				out := asJSON(in)
				verdict := "ok"
				if err := pluginhost.Verify(cmd.Context(), in); err != nil {
					bad = append(bad, err)
					verdict, out.Problem = err.Error(), err.Error()
				}
				if a.json {
					if err := a.printJSON(out); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintf(a.out, "%s %s: %s\n", in.Path, in.Manifest.Version, verdict)
			}
			if len(bad) > 0 {
				return fmt.Errorf("%s cannot be used", count(int64(len(bad)), "plugin"))
			}
			return nil
		},
	}
}

func pluginInfoCommand(a *app, dirs *string) *cobra.Command {
	return &cobra.Command{
		Use: "info NAME", Short: "Show what a plugin is and which options it takes", Args: exactArgs(1, "a name"),
		RunE: func(_ *cobra.Command, args []string) error {
			in, err := a.find(*dirs, args[0])
			if err != nil {
				return err
			}
			if in.Problem != nil && in.Manifest.Name == "" {
				return in.Problem
			}
			if a.json {
				return a.printJSON(in.Manifest)
			}
			a.printPluginInfo(in)
			return nil
		},
	}
}

func (a *app) printPluginInfo(in pluginhost.Installed) {
	m := in.Manifest
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(a.out, "%-12s %s\n", key, value)
		}
	}
	line("plugin", filepath.Base(in.Path)+" "+m.Version)
	line("summary", m.Summary)
	line("kind", m.Kind)
	line("stability", m.Stability)
	line("protocols", strings.Trim(fmt.Sprint(m.Protocols), "[]"))
	line("schemes", strings.Join(m.Schemes, ", "))
	line("environment", strings.Join(m.Env, ", "))
	line("sha256", m.SHA256)
	line("path", in.Path)
	line("state", state(in))
	if len(m.Options) == 0 {
		return
	}
	var rows [][]string
	for _, o := range m.Options {
		value := o.Default
		if o.Secret {
			value = "(secret)"
		}
		rows = append(rows, []string{o.Name, value, o.Doc})
	}
	a.printTable([]string{"option", "default", ""}, rows)
}
