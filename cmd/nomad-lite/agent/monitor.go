package agent

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/streaming"
)

const monitorHelp = `Show what the agent logs from now on, whatever its own log level is.

Ctrl-C ends it. Exit codes: 0, or 1 when the agent refuses.`

const monitorExamples = `  nomad-lite monitor
  nomad-lite monitor -log-level DEBUG
  nomad-lite monitor -json | jq 'select(.["@level"] == "warn")'`

type monitorOptions struct {
	client   apiclient.Flags
	level    string
	json     bool
	location bool
	node     string
	server   string
}

// NewMonitorCommand returns the command "monitor", which follows the log of an agent.
func NewMonitorCommand(s *cli.Streams) *cobra.Command {
	var o monitorOptions
	cmd := &cobra.Command{
		Use:     "monitor [flags]",
		Short:   "Show what the agent logs",
		Long:    monitorHelp,
		Example: monitorExamples,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.UntilInterrupted(cmd.Context())
			defer stop()
			return monitorAgent(ctx, o, s)
		},
	}
	o.client.Register(cmd)
	cmd.Flags().StringVar(&o.level, "log-level", "INFO", "`level` to show: TRACE, DEBUG, INFO, WARN or ERROR")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.location, "log-include-location", false, "say where in the program each line comes from")
	cmd.Flags().StringVar(&o.node, "node-id", "", "`id` of a node whose log to show")
	cmd.Flags().StringVar(&o.server, "server-id", "", "`name` of a server whose log to show, or leader")
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR"}, cobra.ShellCompDirectiveNoFileComp)) // fails only without the flag
	_ = cmd.RegisterFlagCompletionFunc("node-id", apiclient.Nodes.Complete(&o.client))
	return cmd
}

func monitorAgent(ctx context.Context, o monitorOptions, s *cli.Streams) error {
	c, err := o.client.Client()
	if err != nil {
		return err
	}
	node := ""
	if o.node != "" {
		found, err := apiclient.Nodes.Find(ctx, c, o.node)
		if err != nil {
			return err
		}
		node = found.ID
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Params = map[string]string{
		"log_level":            o.level,
		"log_json":             strconv.FormatBool(o.json),
		"log_include_location": strconv.FormatBool(o.location),
		"node_id":              node,
		"server_id":            o.server,
	}
	frames, errs := c.Agent().Monitor(ctx.Done(), q)
	err = streaming.FrameReader{Each: func(data []byte) error {
		_, err := s.Out.Write(data)
		return err
	}}.Read(ctx, frames, errs)
	if err != nil {
		return apiclient.WrapError(fmt.Sprintf("follow the log of the agent at level %s", o.level), err)
	}
	return nil
}
