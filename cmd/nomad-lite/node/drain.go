package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const drainHelp = `Move all allocations away from a node, and place no new ones on it. On a single
node there is nowhere to move them to: they are stopped, and their jobs wait until
the node is eligible again.

It is watched until nothing runs any more; Ctrl-C ends the watching, not the
drain.

Exit codes: 0, or 1 when the node refuses.`

const drainExamples = `  nomad-lite node drain -enable -self -deadline 1m
  nomad-lite node drain -disable -self          take it back
  nomad-lite node drain -monitor -self          watch a drain that has started earlier`

type drainOptions struct {
	clientFlags      apiclient.Flags
	nodeFlags        nodeFlags
	enable           bool
	disable          bool
	monitorOnly      bool
	detach           bool
	force            bool
	noDeadline       bool
	deadline         time.Duration
	ignoreSystem     bool
	keepIneligible   bool
	skipConfirmation bool
	message          string
	metaPairs        []string
}

func newDrainCommand(s *cli.Streams) *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use:     "drain [flags] [NODE]",
		Short:   "Drain a node: stop its allocations and place no new ones",
		Long:    drainHelp,
		Example: drainExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.checkFlags(cmd); err != nil {
				return err
			}
			if err := o.nodeFlags.requireSelfOrNodeArg(cmd, args); err != nil {
				return err
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return changeOrWatchDrain(ctx, o, args, s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.NodeLookup)),
	}
	o.clientFlags.Register(cmd)
	o.nodeFlags.register(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.enable, "enable", false, "begin to drain")
	f.BoolVar(&o.disable, "disable", false, "stop draining, and make the node eligible again")
	f.BoolVar(&o.monitorOnly, "monitor", false, "watch a drain that has started earlier")
	f.BoolVar(&o.detach, "detach", false, "do not watch")
	f.BoolVar(&o.force, "force", false, "stop all allocations at once")
	f.BoolVar(&o.noDeadline, "no-deadline", false, "wait for allocations as long as it takes")
	f.DurationVar(&o.deadline, "deadline", time.Hour, "stop what has not moved after this `time`")
	f.BoolVar(&o.ignoreSystem, "ignore-system", false, "leave allocations of system jobs running")
	f.BoolVar(&o.keepIneligible, "keep-ineligible", false, "with -disable, place no new allocations on it all the same")
	f.BoolVar(&o.skipConfirmation, "yes", false, "do not ask when the argument is only the beginning of an id")
	f.StringVarP(&o.message, "message", "m", "", "`text` that says why, kept with the drain")
	f.StringArrayVar(&o.metaPairs, "meta", nil, "`key=value` to keep with the drain; may be given several times")
	return cmd
}

func (o drainOptions) checkFlags(cmd *cobra.Command) error {
	chosen := 0
	for _, on := range []bool{o.enable, o.disable, o.monitorOnly} {
		if on {
			chosen++
		}
	}
	switch {
	case chosen != 1:
		return cli.UsageError(cmd, errors.New("takes one of -enable, -disable and -monitor"))
	case o.force && (o.noDeadline || cmd.Flags().Changed("deadline")), o.noDeadline && cmd.Flags().Changed("deadline"):
		return cli.UsageError(cmd, errors.New("-force, -deadline and -no-deadline exclude each other"))
	case o.deadline <= 0:
		return cli.UsageError(cmd, errors.New("-deadline takes a positive time; see -force and -no-deadline"))
	case o.keepIneligible && !o.disable:
		return cli.UsageError(cmd, errors.New("-keep-ineligible needs -disable"))
	}
	return nil
}

func changeOrWatchDrain(ctx context.Context, o drainOptions, args []string, s *cli.Streams) error {
	c, node, err := o.nodeFlags.connectAndFindNode(ctx, &o.clientFlags, args)
	if err != nil {
		return err
	}
	index := uint64(1)
	if o.monitorOnly {
		if node.DrainStrategy == nil {
			_, err := fmt.Fprintf(s.Out, "Node %q does not drain\n", node.ID)
			return err
		}
	} else {
		options, err := o.toAPIDrainOptions()
		if err != nil {
			return err
		}
		if err := o.confirmIfArgIsIDPrefix(node, args, s); err != nil {
			return err
		}
		answer, err := c.Nodes().UpdateDrainOpts(node.ID, options, apiclient.WriteOptions(ctx, ""))
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("change drain of node %q", output.TruncateID(node.ID)), err)
		}
		index = answer.LastIndex
		if o.disable {
			_, err := fmt.Fprintf(s.Out, "Node %q drain strategy unset\n", node.ID)
			return err
		}
		if o.detach {
			_, err := fmt.Fprintf(s.Out, "Node %q drain strategy set\n", node.ID)
			return err
		}
	}
	return o.watchDrain(ctx, c, node.ID, index, s)
}

// confirmIfArgIsIDPrefix asks the user for confirmation if the argument is only a prefix of the node's ID.
func (o drainOptions) confirmIfArgIsIDPrefix(node *api.Node, args []string, s *cli.Streams) error {
	if o.skipConfirmation || len(args) == 0 || args[0] == node.ID {
		return nil
	}
	verb := "enable"
	if o.disable {
		verb = "disable"
	}
	return s.Confirm(fmt.Sprintf("Are you sure you want to %s drain mode for node %q?", verb, node.ID), "Canceling drain toggle")
}

// toAPIDrainOptions returns the body of the drain request that the flags describe.
func (o drainOptions) toAPIDrainOptions() (*api.DrainOptions, error) {
	options := &api.DrainOptions{MarkEligible: o.disable && !o.keepIneligible}
	for _, pair := range o.metaPairs {
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("-meta %q: want key=value", pair)
		}
		if options.Meta == nil {
			options.Meta = map[string]string{}
		}
		options.Meta[name] = value
	}
	if o.message != "" {
		if options.Meta == nil {
			options.Meta = map[string]string{}
		}
		options.Meta["message"] = o.message
	}
	if !o.enable {
		return options, nil
	}
	options.DrainSpec = &api.DrainSpec{Deadline: o.deadline, IgnoreSystemJobs: o.ignoreSystem}
	switch {
	case o.force:
		options.DrainSpec.Deadline = -1
	case o.noDeadline:
		options.DrainSpec.Deadline = 0
	}
	return options, nil
}

func (o drainOptions) watchDrain(ctx context.Context, c *api.Client, nodeID string, waitIndex uint64, s *cli.Streams) error {
	printMessage := func(text string) {
		fmt.Fprintf(s.Out, "%s: %s\n", time.Now().Format(time.RFC3339), text)
	}
	printMessage("Ctrl-C to stop monitoring: will not cancel the node drain")
	if !o.monitorOnly {
		printMessage(fmt.Sprintf("Node %q drain strategy set", nodeID))
	}
	var lastMessage *api.MonitorMessage
	for message := range c.Nodes().MonitorDrain(ctx, nodeID, waitIndex, o.ignoreSystem) {
		lastMessage = message
		printMessage(message.String())
	}
	if lastMessage != nil && lastMessage.Level == api.MonitorMsgLevelError {
		return &cli.ExitError{Code: 1}
	}
	return nil
}
