package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// completeTable offers the tables of the node for the first argument. A node
// that does not answer at once offers nothing: a shell must not hang.
func (a *app) completeTable(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	c, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	tables, err := c.ListTables(ctx, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeWords offers a flag's values.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	// It fails for a flag that does not exist or has completion: the tests build
	// every command.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}
