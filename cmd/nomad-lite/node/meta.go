package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const metaReadHelp = `Show the metadata of a node, which jobs can use as ${meta.NAME}: all of it, what
its configuration says, and what was changed since.

Without -node-id it is the node of the agent.

Exit codes: 0, or 1 when there is no such node.`

const metaApplyHelp = `Change the metadata of a node while it runs. The change outlives the agent, and
hides what its configuration says. On success nothing is printed.

Without -node-id it is the node of the agent.

Exit codes: 0, or 1 when it is refused.`

const metaApplyExamples = `  nomad-lite node meta apply rack=r7 owner=ops
  nomad-lite node meta apply -unset owner`

type metaOptions struct {
	clientFlags    apiclient.Flags
	formatFlags    output.FormatFlags
	nodeIDOrPrefix string
	unsetKeys      []string
}

func newMetaCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("meta", "Show and change the metadata of a node", newMetaReadCommand(s), newMetaApplyCommand())
}

func newMetaReadCommand(s *cli.Streams) *cobra.Command {
	var o metaOptions
	cmd := &cobra.Command{
		Use:   "read [flags]",
		Short: "Show the metadata of a node",
		Long:  metaReadHelp,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return readNodeMeta(cmd.Context(), o, s)
		},
	}
	o.registerNodeFlags(cmd)
	o.formatFlags.Register(cmd)
	return cmd
}

func newMetaApplyCommand() *cobra.Command {
	var o metaOptions
	cmd := &cobra.Command{
		Use:     "apply [flags] [NAME=VALUE...]",
		Short:   "Change the metadata of a node",
		Long:    metaApplyHelp,
		Example: metaApplyExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			meta, err := o.parseMetaChanges(args)
			if err != nil {
				return cli.UsageError(cmd, err)
			}
			return applyNodeMeta(cmd.Context(), o, meta)
		},
	}
	o.registerNodeFlags(cmd)
	cmd.Flags().StringSliceVar(&o.unsetKeys, "unset", nil, "`names` to remove, separated by commas")
	return cmd
}

func (o *metaOptions) registerNodeFlags(cmd *cobra.Command) {
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.nodeIDOrPrefix, "node-id", "", "`id` of the node")
	cli.MustSetFlagCompletion(cmd, "node-id", apiclient.CompleteID(&o.clientFlags, &apiclient.NodeLookup))
}

// resolveNodeID returns the ID of the node that -node-id selects. "" stands for the agent's own node.
func (o metaOptions) resolveNodeID(ctx context.Context, c *api.Client) (string, error) {
	if o.nodeIDOrPrefix == "" {
		return "", nil
	}
	found, err := apiclient.FindOneByPrefix(ctx, c, &apiclient.NodeLookup, o.nodeIDOrPrefix)
	if err != nil {
		return "", err
	}
	return found.ID, nil
}

// parseMetaChanges returns the changes of node metadata that the arguments and -unset describe. A nil value removes the
// key.
func (o metaOptions) parseMetaChanges(args []string) (map[string]*string, error) {
	meta := map[string]*string{}
	for _, name := range o.unsetKeys {
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

func readNodeMeta(ctx context.Context, o metaOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	id, err := o.resolveNodeID(ctx, c)
	if err != nil {
		return err
	}
	meta, err := c.Nodes().Meta().Read(id, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("read metadata of the node", err)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, meta)
	}
	p := output.NewPage(s)
	for _, section := range []struct {
		title string
		pairs output.Pairs
	}{
		{"All Meta", output.SortedPairs(meta.Meta)},
		{"Dynamic Meta", dynamicMetaPairs(meta.Dynamic)},
		{"Static Meta", output.SortedPairs(meta.Static)},
	} {
		p.AddSectionTitle(section.title)
		p.AddPairs(section.pairs)
	}
	return output.PrintPage(s, p)
}

// dynamicMetaPairs returns the dynamic metadata of a node as sorted pairs. A nil value stands for a removed key and is
// shown as "<unset>".
func dynamicMetaPairs(valueByKey map[string]*string) output.Pairs {
	flat := map[string]string{}
	for name, value := range valueByKey {
		if value == nil {
			flat[name] = "<unset>"
		} else {
			flat[name] = *value
		}
	}
	return output.SortedPairs(flat)
}

func applyNodeMeta(ctx context.Context, o metaOptions, meta map[string]*string) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	id, err := o.resolveNodeID(ctx, c)
	if err != nil {
		return err
	}
	if _, err := c.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: id, Meta: meta}, apiclient.QueryOptions(ctx, "")); err != nil {
		return apiclient.WrapErrorWithAdvice("change metadata of the node", err)
	}
	return nil
}
