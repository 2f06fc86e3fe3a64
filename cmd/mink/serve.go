package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/server"
)

// What --check-config looks at.
const (
	checkAll  = "all"
	checkKeys = "keys"
)

func serveCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `Runs a node until it is asked to stop (SIGINT, SIGTERM). Without flags it needs
nothing installed: metadata in SQLite and objects in a directory, both below
./data; Flight on 127.0.0.1:9123, Kafka on 127.0.0.1:9092, HTTP on
127.0.0.1:9190. Prints one line when it is ready, which names the buckets that
stay closed because records are damaged.

Every flag is also a key of the --config file (with underscores) and a variable
MINK_<KEY>. Order: defaults, file, environment, flags.`,
		Example: `  mink serve
  mink serve --data-dir /var/lib/mink --kafka-listen 127.0.0.1:19092
  mink serve --config mink.toml
  mink serve --storage-uri s3://bucket/mink --storage-options region=eu-west-1
  mink serve --config mink.toml --check-config
  mink serve --config mink.toml --check-config=keys`,
		Args: noArgs,
	}
	values := map[string]*string{}
	insecure, check := false, ""
	cmd.Flags().StringVar(&check, "check-config", "", "try the configuration, its stores and its metadata database, start no node; =keys: only keys and values, nothing is opened")
	cmd.Flags().Lookup("check-config").NoOptDefVal = checkAll
	for _, k := range server.Keys() {
		if k.Type == "boolean" && k.Name == "insecure" {
			cmd.Flags().BoolVar(&insecure, k.Flag, false, k.Doc)
			continue
		}
		v := new(string)
		values[k.Name] = v
		cmd.Flags().StringVar(v, k.Flag, k.Default, k.Doc)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		set := map[string]string{}
		for name, v := range values {
			if flagOf(name, cmd) {
				set[name] = *v
			}
		}
		if insecure {
			set["insecure"] = "true"
		}
		cfg, err := server.LoadConfig(a.config, nil, set)
		if err != nil {
			return &usageError{err}
		}
		logger := newLogger(cfg.LogLevel, cfg.LogFormat)
		if cfg.Insecure {
			logger.Warn("--insecure: listeners beyond loopback are open to whoever reaches them; there is no authentication yet")
		}
		switch check {
		case "":
		case checkKeys:
			for _, line := range append(server.CheckKeys(cfg), "the configuration is valid") {
				fmt.Fprintln(a.out, line)
			}
			return nil
		default:
			if check != checkAll {
				return usagef("--check-config=%s: want --check-config or --check-config=%s", check, checkKeys)
			}
			report, err := server.Check(cmd.Context(), cfg, logger)
			for _, line := range report {
				fmt.Fprintln(a.out, line)
			}
			return err
		}
		for _, w := range cfg.Warnings() {
			logger.Warn("configuration: " + w)
		}
		return server.Run(cmd.Context(), cfg, logger, func(at server.Ready) {
			dir := cfg.DataDir
			if abs, err := filepath.Abs(dir); err == nil {
				dir = abs
			}
			missing := ""
			if at.Missing != "" {
				missing = "; not all of it is served: " + at.Missing
			}
			fmt.Fprintf(a.out, "mink %s ready: node %d, flight grpc://%s, kafka %s, http %s, data %s%s\n",
				server.Version, cfg.NodeID, at.Flight, orOff(at.Kafka), orOff(at.HTTP), dir, missing)
		})
	}
	return cmd
}

func flagOf(key string, cmd *cobra.Command) bool {
	i := slices.IndexFunc(server.Keys(), func(k server.Key) bool { return k.Name == key })
	return cmd.Flags().Changed(server.Keys()[i].Flag)
}

func orOff(address string) string {
	if address == "" {
		return "off"
	}
	return address
}

// newLogger logs to stderr: text on a terminal, JSON otherwise.
func newLogger(level, format string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // validated with the configuration
	o := &slog.HandlerOptions{Level: l}
	if format == "json" || format == "auto" && !isatty.IsTerminal(os.Stderr.Fd()) {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}
