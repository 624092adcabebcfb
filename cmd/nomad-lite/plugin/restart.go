package plugin

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
)

const restartHelp = `Shut down the process of a plugin, and start the plugin again with the file that is in
the plugin directory now. Tasks continue, and the next process recovers them. A plugin
that waits after a failure is started at once.

The command returns when the earlier process has exited: nomad-lite plugin status
shows the next one.

Exit codes: 0, or 1 when there is no such plugin.`

func newRestartCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	cmd := &cobra.Command{
		Use:     "restart [flags] PLUGIN",
		Short:   "Restart the process of a plugin",
		Long:    restartHelp,
		Example: "  nomad-lite plugin restart nomad-driver-podman",
		Args:    cli.RequireArgCount(1, 1, "a plugin"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return restartPlugin(cmd.Context(), &client, args[0], s)
		},
	}
	client.Register(cmd)
	return cmd
}

// restartPlugin restarts the plugin whose file or builtin has the name, or else the plugin that serves a driver, a hook or
// devices of the name.
func restartPlugin(ctx context.Context, flags *apiclient.Flags, name string, s *cli.Streams) error {
	c, err := flags.Client()
	if err != nil {
		return err
	}
	file := name
	for _, p := range pluginstatus.ReadReportOrEmpty(c).FilterByName(name).Processes {
		if file = p.Name; file == name {
			break
		}
	}
	if _, err := c.Raw().Write("/v1/agent/plugins/"+url.PathEscape(file)+"/restart", nil, nil, apiclient.WriteOptions(ctx, "")); err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("restart plugin %q", name), err)
	}
	_, err = fmt.Fprintf(s.Out, "Restarted plugin %q\n", file)
	return err
}
