package agentinfo

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
)

const monitorHelp = `Stream the log of the agent from now on, independently of its own log level.

Ctrl-C ends it. Exit codes: 0, or 1 when the agent refuses.`

const monitorExamples = `  nomad-lite monitor
  nomad-lite monitor -log-level DEBUG
  nomad-lite monitor -json | jq 'select(.["@level"] == "warn")'`

type monitorOptions struct {
	clientFlags           apiclient.Flags
	logLevel              string
	printJSON             bool
	includeSourceLocation bool
	nodeID                string
	serverID              string
}

// NewMonitorCommand returns the command "monitor", which follows the log of an agent.
func NewMonitorCommand(s *cli.Streams) *cobra.Command {
	var o monitorOptions
	cmd := &cobra.Command{
		Use:     "monitor [flags]",
		Short:   "Stream the log of the agent",
		Long:    monitorHelp,
		Example: monitorExamples,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return monitorAgent(ctx, o, s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.logLevel, "log-level", "INFO", "`level` to show: TRACE, DEBUG, INFO, WARN or ERROR")
	cmd.Flags().BoolVar(&o.printJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.includeSourceLocation, "log-include-location", false, "say where in the program each line comes from")
	cmd.Flags().StringVar(&o.nodeID, "node-id", "", "`id` of a node whose log to show")
	cmd.Flags().StringVar(&o.serverID, "server-id", "", "`name` of a server whose log to show, or leader")
	cli.MustSetFlagCompletion(cmd, "log-level", cobra.FixedCompletions([]string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR"}, cobra.ShellCompDirectiveNoFileComp))
	cli.MustSetFlagCompletion(cmd, "node-id", apiclient.CompleteID(&o.clientFlags, &apiclient.NodeLookup))
	cmd.AddCommand(cli.NewUnsupportedCommand("export", "the service manager stores the log of the agent, for example: journalctl -u nomad-lite"))
	return cmd
}

func monitorAgent(ctx context.Context, o monitorOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	node := ""
	if o.nodeID != "" {
		found, err := apiclient.FindOneByPrefix(ctx, c, &apiclient.NodeLookup, o.nodeID)
		if err != nil {
			return err
		}
		node = found.ID
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Params = map[string]string{
		"log_level":            o.logLevel,
		"log_json":             strconv.FormatBool(o.printJSON),
		"log_include_location": strconv.FormatBool(o.includeSourceLocation),
		"node_id":              node,
		"server_id":            o.serverID,
	}
	out := s.Out
	if o.printJSON {
		out = s.JSONOutput()
	}
	frames, errs := c.Agent().Monitor(ctx.Done(), q)
	err = streaming.FrameReader{OnData: func(data []byte) error {
		_, err := out.Write(data)
		return err
	}}.ReadFrames(ctx, frames, errs)
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("follow the log of the agent at level %s", o.logLevel), err)
	}
	return nil
}
