package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const nodeMetaReadHelp = `Show the metadata of a node, which jobs can use as ${meta.NAME}: all of it, what
its configuration says, and what was changed since.

Without -node-id it is the node of the agent.

Exit codes: 0, or 1 when there is no such node.`

const nodeMetaApplyHelp = `Change the metadata of a node while it runs. The change outlives the agent, and
hides what its configuration says.

Without -node-id it is the node of the agent.

Exit codes: 0, or 1 when it is refused.`

const nodeMetaApplyExamples = `  nomad-lite node meta apply rack=r7 owner=ops
  nomad-lite node meta apply -unset owner`

type nodeMetaOptions struct {
	client clientFlags
	format formatFlags
	node   string
	unset  []string
}

func newNodeMetaCommand(s *streams) *cobra.Command {
	return group("meta", "Show and change the metadata of a node", newNodeMetaReadCommand(s), newNodeMetaApplyCommand(s))
}

func newNodeMetaReadCommand(s *streams) *cobra.Command {
	var o nodeMetaOptions
	cmd := &cobra.Command{
		Use:   "read [flags]",
		Short: "Show the metadata of a node",
		Long:  nodeMetaReadHelp,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return readNodeMeta(cmd.Context(), o, s)
		},
	}
	o.register(cmd)
	o.format.register(cmd)
	return cmd
}

func newNodeMetaApplyCommand(s *streams) *cobra.Command {
	var o nodeMetaOptions
	cmd := &cobra.Command{
		Use:     "apply [flags] [NAME=VALUE...]",
		Short:   "Change the metadata of a node",
		Long:    nodeMetaApplyHelp,
		Example: nodeMetaApplyExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			meta, err := o.change(args)
			if err != nil {
				return usageError(cmd, err)
			}
			return applyNodeMeta(cmd.Context(), o, meta, s)
		},
	}
	o.register(cmd)
	cmd.Flags().StringSliceVar(&o.unset, "unset", nil, "`names` to remove, separated by commas")
	return cmd
}

func (o *nodeMetaOptions) register(cmd *cobra.Command) {
	o.client.register(cmd)
	cmd.Flags().StringVar(&o.node, "node-id", "", "`id` of the node")
	_ = cmd.RegisterFlagCompletionFunc("node-id", nodeKind.complete(&o.client)) // fails only without the flag
}

// id returns the id of the node, "" for the node of the agent.
func (o nodeMetaOptions) id(ctx context.Context, c *api.Client) (string, error) {
	if o.node == "" {
		return "", nil
	}
	found, err := nodeKind.find(ctx, c, o.node)
	if err != nil {
		return "", err
	}
	return found.ID, nil
}

// change returns the changes of the arguments and -unset; nil removes a name.
func (o nodeMetaOptions) change(args []string) (map[string]*string, error) {
	meta := map[string]*string{}
	for _, name := range o.unset {
		meta[name] = nil
	}
	for _, arg := range args {
		name, value, found := strings.Cut(arg, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("%q: want NAME=VALUE", arg)
		}
		meta[name] = &value
	}
	if len(meta) == 0 {
		return nil, errors.New("takes NAME=VALUE, or -unset NAME")
	}
	return meta, nil
}

func readNodeMeta(ctx context.Context, o nodeMetaOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	id, err := o.id(ctx, c)
	if err != nil {
		return err
	}
	meta, err := c.Nodes().Meta().Read(id, query(ctx, ""))
	if err != nil {
		return failed("read metadata of the node", err)
	}
	if o.format.wanted() {
		return o.format.print(s, meta)
	}
	p := s.page()
	for _, part := range []struct {
		title string
		pairs pairs
	}{
		{"All Meta", sortedPairs(meta.Meta)},
		{"Dynamic Meta", pointerPairs(meta.Dynamic)},
		{"Static Meta", sortedPairs(meta.Static)},
	} {
		p.section(part.title)
		if len(part.pairs) == 0 {
			p.line("none")
		}
		p.pairs(part.pairs)
	}
	return s.show(p)
}

// pointerPairs returns the pairs of a map in which nil means removed.
func pointerPairs(m map[string]*string) pairs {
	flat := map[string]string{}
	for name, value := range m {
		if value == nil {
			flat[name] = "<unset>"
		} else {
			flat[name] = *value
		}
	}
	return sortedPairs(flat)
}

func applyNodeMeta(ctx context.Context, o nodeMetaOptions, meta map[string]*string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	id, err := o.id(ctx, c)
	if err != nil {
		return err
	}
	if _, err := c.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: id, Meta: meta}, query(ctx, "")); err != nil {
		return failed("change metadata of the node", err)
	}
	_, err = fmt.Fprintln(s.out, "Changed the metadata of the node")
	return err
}
