package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/server"
)

func metaCommand(a *app) *cobra.Command {
	return group("meta", "Export, inspect and restore the metadata of a cluster", metaExportCommand(a), metaInspectCommand(a), metaRestoreCommand(a))
}

// storageKeys are the keys that say where a cluster is.
var storageKeys = []string{"data_dir", "meta_url", "storage_uri", "storage_options", "wal_uri", "wal_options", "plugin_dir"}

// storageFlags gives a command the flags of some of a node's keys, and answers the
// configuration that they, the file and the environment make.
func (a *app) storageFlags(cmd *cobra.Command, names ...string) func() (server.Config, error) {
	values := map[string]*string{}
	for _, k := range server.Keys() {
		if slices.Contains(names, k.Name) {
			values[k.Name] = cmd.Flags().String(k.Flag, k.Default, k.Doc)
		}
	}
	return func() (server.Config, error) {
		set := map[string]string{}
		for name, v := range values {
			if flagOf(name, cmd) {
				set[name] = *v
			}
		}
		cfg, err := server.LoadConfig(a.config, nil, set)
		if err != nil {
			return cfg, &usageError{err}
		}
		return cfg, nil
	}
}

func metaExportCommand(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "export", Short: "Write the metadata, as they are now, to a file or to standard output",
		Long: `Reads the metadata database, which nodes may go on using, and writes all metadata at
one index: tables, buckets, which objects hold what, offsets of consumer groups. Records are
not in it: they are on the object store. docs/disaster-recovery.md says how long an export
stays good, and what a restore brings back.

The database is the one that --config, MINK_META_URL or --meta-url names.`,
		Example: `  mink meta export -o meta-$(date +%F).mink
  mink meta export --meta-url postgres://mink@db/mink > meta.mink`,
		Args: noArgs,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "-", "file to write, complete or not at all; -: standard output")
	config := a.storageFlags(cmd, "data_dir", "meta_url")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config()
		if err != nil {
			return err
		}
		write := func(w io.Writer) error {
			info, err := server.ExportMeta(cmd.Context(), cfg, w, newLogger("warn", cfg.LogFormat))
			if err == nil {
				a.note("exported the metadata at index %d, incarnation %s", info.Index, info.Incarnation)
			}
			return err
		}
		if output == "-" {
			return write(a.out)
		}
		return writeWhole(output, write)
	}
	return cmd
}

// writeWhole writes a file that is there whole and durable, or as it was before.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// openExport opens a file, - for standard input.
func (a *app) openExport(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(a.in), nil
	}
	return os.Open(path)
}

func metaInspectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "inspect FILE", Short: "Check an export and say what it holds", Args: exactArgs(1, "a file"),
		Example: `  mink meta inspect meta.mink`,
		RunE: func(_ *cobra.Command, args []string) (err error) {
			f, err := a.openExport(args[0])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			s, err := server.InspectMeta(f)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if a.json {
				return a.printJSON(s)
			}
			fmt.Fprintf(a.out, "metadata at index %d, incarnation %s, written %s by mink %s\n", s.Index, s.Incarnation, s.Exported.Format(time.RFC3339), s.WrittenBy)
			a.printTable([]string{"nodes", "databases", "tables", "buckets", "groups", "objects", "size of objects", "logs to recover"}, [][]string{{
				fmt.Sprint(s.Nodes), fmt.Sprint(s.Databases), fmt.Sprint(s.Tables), fmt.Sprint(s.Buckets), fmt.Sprint(s.Groups),
				fmt.Sprint(s.Objects), humanize.IBytes(uint64(max(s.Bytes, 0))), fmt.Sprint(s.Pending),
			}})
			return nil
		},
	}
}

func metaRestoreCommand(a *app) *cobra.Command {
	var o server.RestoreOptions
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make the metadata of an export those of a database",
		Long: `Fills an empty metadata database from an export and ties it to the object store, which is
read for that: offsets that the store shows to have been given out after the export are not
given out again. Stop all nodes first; start them afterwards as ever. The first one recovers
what the write-ahead logs still hold.

docs/disaster-recovery.md says what comes back and what is lost. Database and store are those
that --config, the environment or the flags name, as for mink serve.`,
		Example: `  mink meta restore --config mink.toml meta.mink
  mink meta restore --config mink.toml --replace 3f9c51d2a07e4b61 meta.mink`,
		Args: exactArgs(1, "a file"),
	}
	cmd.Flags().StringVar(&o.Replace, "replace", "", "incarnation of the metadata that the database holds and that are given up; refused without when it holds any")
	cmd.Flags().StringVar(&o.Store, "store", "", "incarnation that the object store belongs to, when it is not the export's")
	config := a.storageFlags(cmd, storageKeys...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := config()
		if err != nil {
			return err
		}
		return a.restoreMeta(cmd.Context(), cfg, args[0], o)
	}
	return cmd
}

func (a *app) restoreMeta(ctx context.Context, cfg server.Config, path string, o server.RestoreOptions) (err error) {
	f, err := a.openExport(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r, err := server.RestoreMeta(ctx, cfg, f, o, newLogger("warn", cfg.LogFormat))
	if err != nil {
		return fmt.Errorf("restore %s: %w", path, err)
	}
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.out, "restored the metadata at index %d: %s, %s; incarnation %s begins\n", r.Index, count(int64(r.Tables), "table"), count(int64(r.Buckets), "bucket"), r.Incarnation)
	fmt.Fprintf(a.out, "the object store has %s (%s) that these metadata do not name; mink fsck lists them once a node runs\n",
		count(int64(r.UnknownObjects), "object"), humanize.IBytes(uint64(max(r.UnknownBytes, 0))))
	if len(r.Given) > 0 {
		var rows [][]string
		for _, g := range r.Given {
			rows = append(rows, []string{g.Table, g.Bucket.String(), g.Known.String(), g.End.String()})
		}
		fmt.Fprintln(a.out, "offsets that were given out later: what the write-ahead logs hold of them comes back, the rest is skipped")
		a.printTable([]string{"table", "bucket", "from", "to"}, rows)
	}
	for _, s := range r.Stopped {
		fmt.Fprintf(a.out, "table %s is not tiered to %s any further: %s\n", s.Table, s.Sink, s.Reason)
	}
	return nil
}
