package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func removeNodeCommand(a *app) *cobra.Command {
	ifExists := false
	cmd := &cobra.Command{
		Use: "remove-node ID", Short: "Forget a node that has ended",
		Long: `Takes a node that was stopped, or is dead, off the list of nodes. Refused while it is
alive: stop it first. What it had acknowledged is recovered before, and its buckets
are led by others: that is waited for. Nothing is deleted. A node that is started
again under the id joins anew.

Nodes that ended are removed by themselves after node_retention.`,
		Example: `  mink cluster remove-node 3`,
		Args:    exactArgs(1, "a node id"),
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := nodeID(args[0])
			if err != nil {
				return err
			}
			r, err := c.RemoveNode(cmd.Context(), id, ifExists)
			if err != nil {
				return err
			}
			switch {
			case a.json:
				return a.printJSON(r)
			case r.Removed:
				fmt.Fprintf(a.out, "node %d, epoch %d, is removed\n", r.Node, r.Epoch)
			default:
				fmt.Fprintf(a.out, "node %d is not registered any more\n", r.Node)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&ifExists, "if-exists", false, "succeed when it is not registered")
	return cmd
}

func nodeID(text string) (mink.NodeID, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return 0, usagef("%q: want a node id, 1 or more, as mink cluster describe lists them", text)
	}
	return mink.NodeID(n), nil
}
