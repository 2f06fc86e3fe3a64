package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/nearest"
)

// usageError is a wrong call: exit code 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// app is what every command shares: global flags and streams. Data goes to
// out, everything else to errOut.
type app struct {
	bootstrap string
	retryFor  time.Duration
	json      bool
	config    string
	quiet     bool

	in          io.Reader
	out, errOut io.Writer
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "mink",
		Short: "Lakehouse-native streaming storage",
		Long: `Mink stores streams of rows on an object store and serves them to Kafka and
Arrow Flight clients. One binary is the node and its client.

  mink serve                        run a node on embedded defaults
  mink demo                         see the main job done, on a throw-away node
  mink write db.events <rows.jsonl  append rows to a table, or upsert them
  mink read db.events               read them back
  mink lookup db.items 7            find a row by its primary key

Data goes to standard output, everything else to standard error. Exit codes:
0 done, 1 failed, 2 wrong usage. mink completion --help sets up your shell.`,
		Args: cobra.ArbitraryArgs,
		RunE: helpOrUnknown,

		DisableFlagsInUseLine: true,
		SilenceUsage:          true,
		SilenceErrors:         true,
		Version:               server.Version,
	}
	bootstrap := os.Getenv("MINK_BOOTSTRAP")
	if bootstrap == "" {
		bootstrap = "grpc://127.0.0.1:9123"
	}
	f := root.PersistentFlags()
	f.StringVarP(&a.bootstrap, "bootstrap", "b", bootstrap, "nodes to talk to, comma separated; also MINK_BOOTSTRAP")
	f.DurationVar(&a.retryFor, "retry-for", 10*time.Second, "how long to try again while no node answers")
	f.BoolVar(&a.json, "json", false, "answer in JSON")
	f.StringVar(&a.config, "config", "", "TOML file of a node's configuration")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress and no notes, only data and errors")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(serveCommand(a), demoCommand(a), dbCommand(a), tableCommand(a), partitionCommand(a), topicCommand(a), writeCommand(a), readCommand(a), lookupCommand(a), groupCommand(a),
		clusterCommand(a), metaCommand(a), pluginCommand(a), fsckCommand(a), benchCommand(a), versionCommand(a))
	return root
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: helpOrUnknown, DisableFlagsInUseLine: true}
	cmd.AddCommand(commands...)
	return cmd
}

// helpOrUnknown is what a command does that only holds others.
func helpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2
	near := cmd.SuggestionsFor(args[0])
	if len(near) == 0 {
		return usagef("unknown command %q for %s; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
	return usagef("unknown command %q for %s; did you mean %s?", args[0], cmd.CommandPath(), strings.Join(near, " or "))
}

// flagError says what a flag wants, and which one a mistyped one may be.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &invalid):
		return usagef("--%s %q: want %s", invalid.GetFlag().Name, invalid.GetValue(), flagWants(invalid.GetFlag().Value.Type()))
	case !errors.As(err, &unknown):
		return &usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near, ok := nearest.Close(unknown.GetSpecifiedName(), names); ok {
		return usagef("%w; did you mean --%s?", err, near)
	}
	return usagef("%w; see %s --help", err, cmd.CommandPath())
}

// flagWants is what a flag of a pflag type takes.
func flagWants(kind string) string {
	switch kind {
	case "int", "int32", "int64":
		return "a whole number"
	case "duration":
		return "a duration such as 500ms, 10s or 5m"
	case "bool":
		return "true or false"
	}
	return "another value" // a list in CSV that does not parse
}

// client connects to the bootstrap nodes.
func (a *app) client() (*client.Client, error) { return a.clientFor(a.retryFor) }

// connected is a command's run with a client that is closed afterwards.
func (a *app) connected(run func(*cobra.Command, *client.Client, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		return errors.Join(run(cmd, c, args), c.Close())
	}
}

// patientClient is for long work: some node must answer within --retry-for, and may
// be away for minutes later.
func (a *app) patientClient(ctx context.Context) (*client.Client, error) {
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	_, err = c.ListDatabases(ctx)
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	return a.clientFor(max(a.retryFor, client.Default().RetryTimeout))
}

func (a *app) clientFor(retry time.Duration) (*client.Client, error) {
	cfg := client.Default()
	cfg.Bootstrap, cfg.RetryTimeout = nil, max(retry, time.Millisecond) // 0 would be for ever
	for b := range strings.SplitSeq(a.bootstrap, ",") {
		if b = strings.TrimSpace(b); b != "" {
			cfg.Bootstrap = append(cfg.Bootstrap, b)
		}
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

// printJSON writes one JSON value and a newline.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// created reports a new thing, or with --if-not-exists one that may have been
// there: as JSON its name, else a note.
func (a *app) created(kind, name string, maybe bool) error {
	if maybe {
		return a.done(kind, name, "exists")
	}
	return a.done(kind, name, "created")
}

// dropped reports that a thing is no more; with --if-exists it may never have been.
func (a *app) dropped(kind, name string, maybe bool) error {
	if maybe {
		return a.done(kind, name, "absent")
	}
	return a.done(kind, name, "dropped")
}

func (a *app) done(kind, name, state string) error {
	if a.json {
		return a.printJSON(map[string]string{kind: name, "state": state})
	}
	a.note("%s %s %s", kind, name, state)
	return nil
}

// count is "1 row", "2 rows".
func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.FormatInt(n, 10) + " " + thing + "s"
}

// note tells a person what happened; never mixed with data.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.errOut, format+"\n", args...)
	}
}
