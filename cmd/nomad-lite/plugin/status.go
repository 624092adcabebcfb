package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
)

const statusHelp = `Show the status of the task drivers on the nodes, the hooks and device plugins of
the agent, and the CSI plugins if there are any; or one of them, with its process, how often the
process was started again, its capabilities with their effect on this machine, its schemas, and
the calls to it. To see which plugins there are on this machine, without an agent: nomad-lite
plugin list. To see one of them, without an agent: nomad-lite plugin inspect.

Exit codes: 0, or 1 when there is no such plugin.`

type statusOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	verbose     bool
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:     "status [flags] [PLUGIN]",
		Short:   "Show the status of the agent's plugins",
		Long:    statusHelp,
		Example: "  nomad-lite plugin status\n  nomad-lite plugin status raw_exec\n  nomad-lite plugin status script",
		Args:    cli.RequireArgCount(0, 1, "a plugin, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return showPluginStatus(cmd.Context(), o, name, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show whole ids")
	return cmd
}

// nodeDriver is a driver of one node, as the node reports it.
type nodeDriver struct {
	Driver   string
	NodeID   string
	NodeName string
	*api.DriverInfo
}

func showPluginStatus(ctx context.Context, o statusOptions, nameFilter string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	drivers, err := listNodeDrivers(ctx, c, nameFilter)
	if err != nil {
		return err
	}
	csi, _, err := c.CSIPlugins().List(apiclient.QueryOptions(ctx, ""))
	if err != nil && !apiclient.IsNotFound(err) {
		return apiclient.WrapErrorWithAdvice("list CSI plugins", err)
	}
	csi = slices.DeleteFunc(csi, func(p *api.CSIPluginListStub) bool { return nameFilter != "" && p.ID != nameFilter })
	report := pluginstatus.ReadReportOrEmpty(c)
	if nameFilter != "" {
		report = report.FilterByName(nameFilter)
	}
	hooks, processes := report.Hooks, report.Processes
	if nameFilter != "" && len(drivers)+len(csi)+len(hooks)+len(processes) == 0 {
		return fmt.Errorf("no node has a plugin %q\nTo list all plugins: nomad-lite plugin status", nameFilter)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, struct {
			Drivers []nodeDriver
			Hooks   []pluginstatus.Hook `json:",omitempty"`
			CSI     []*api.CSIPluginListStub

			Processes []pluginstatus.Process `json:",omitempty"`
		}{drivers, hooks, csi, processes})
	}
	p := output.NewPage(s)
	if nameFilter == "" || len(drivers) > 0 {
		t := output.NewTable("Driver", "Node ID", "Node Name", "Detected", "Healthy", "Message", "Since")
		for _, d := range drivers {
			t.AddRow(d.Driver, output.ShortIDUnlessVerbose(d.NodeID, o.verbose), d.NodeName, d.Detected, d.Healthy, d.HealthDescription, output.FormatTimestamp(d.UpdateTime))
		}
		p.AddTable(t)
	}
	if nameFilter != "" {
		for _, d := range drivers {
			if len(d.Attributes) > 0 {
				p.AddSectionTitle(fmt.Sprintf("Attributes of %q on node %q", d.Driver, d.NodeName))
				p.AddPairs(output.SortedPairs(d.Attributes))
			}
		}
	}
	switch {
	case nameFilter == "" && len(hooks) > 0:
		p.AddSectionTitle("Hooks")
		p.AddTable(pluginstatus.NewHookTable(hooks))
	case len(hooks) > 0:
		pluginstatus.PrintHook(p, hooks[0], o.verbose)
	}
	if t := pluginstatus.NewDevicePluginTable(processes); nameFilter == "" && t != nil {
		p.AddSectionTitle("Device plugins")
		p.AddTable(t)
	}
	if nameFilter != "" {
		for _, process := range processes {
			pluginstatus.PrintProcess(p, process)
		}
	} else if t := pluginstatus.NewUnstartedPluginTable(processes); t != nil {
		p.AddSectionTitle("Plugins that have not started")
		p.AddTable(t)
	}
	if nameFilter == "" {
		p.AddSectionTitle("Container Storage Interface")
	}
	if nameFilter == "" && len(csi) == 0 {
		fmt.Fprintln(s.Err, "No CSI plugins") // on standard error, as in Nomad
	}
	if len(csi) > 0 {
		t := output.NewTable("ID", "Provider", "Controllers Healthy/Expected", "Nodes Healthy/Expected")
		for _, plugin := range csi {
			t.AddRow(plugin.ID, plugin.Provider, fmt.Sprintf("%d/%d", plugin.ControllersHealthy, plugin.ControllersExpected),
				fmt.Sprintf("%d/%d", plugin.NodesHealthy, plugin.NodesExpected))
		}
		p.AddTable(t)
	}
	return output.PrintPage(s, p)
}

// listNodeDrivers returns the drivers of all nodes, or only the driver with this name.
func listNodeDrivers(ctx context.Context, c *api.Client, nameFilter string) ([]nodeDriver, error) {
	nodes, _, err := c.Nodes().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice("list nodes", err)
	}
	var drivers []nodeDriver
	for _, n := range nodes {
		for _, driver := range slices.Sorted(maps.Keys(n.Drivers)) {
			if info := n.Drivers[driver]; info != nil && (nameFilter == "" || nameFilter == driver) {
				drivers = append(drivers, nodeDriver{driver, n.ID, n.Name, info})
			}
		}
	}
	return drivers, nil
}
