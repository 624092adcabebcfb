package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const pluginStatusHelp = `Show the task drivers as the agent sees them on its nodes, the hooks of the agent,
or one of them, and the CSI plugins if there are any. To see which plugins there are on this machine,
without an agent: nomad-lite plugin list.

Exit codes: 0, or 1 when there is no such plugin.`

type pluginStatusOptions struct {
	client  clientFlags
	format  formatFlags
	verbose bool
}

func newPluginStatusCommand(s *streams) *cobra.Command {
	var o pluginStatusOptions
	cmd := &cobra.Command{
		Use:     "status [flags] [PLUGIN]",
		Short:   "Show plugins as the agent sees them",
		Long:    pluginStatusHelp,
		Example: "  nomad-lite plugin status\n  nomad-lite plugin status raw_exec\n  nomad-lite plugin status script",
		Args:    argCount(0, 1, "a plugin, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return pluginStatus(cmd.Context(), o, name, s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show whole ids")
	return cmd
}

// driverOnNode is the state of a driver on one node.
type driverOnNode struct {
	Driver   string
	NodeID   string
	NodeName string
	*api.DriverInfo
}

func pluginStatus(ctx context.Context, o pluginStatusOptions, name string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	drivers, err := driversOfNodes(ctx, c, name)
	if err != nil {
		return err
	}
	csi, _, err := c.CSIPlugins().List(query(ctx, ""))
	if err != nil && !unknown(err) {
		return failed("list CSI plugins", err)
	}
	csi = slices.DeleteFunc(csi, func(p *api.CSIPluginListStub) bool { return name != "" && p.ID != name })
	hooks := agentHooks(c, name)
	if name != "" && len(drivers)+len(csi)+len(hooks) == 0 {
		return fmt.Errorf("no node has a plugin %q\nSee those that there are: nomad-lite plugin status", name)
	}
	if o.format.wanted() {
		return o.format.print(s, struct {
			Drivers []driverOnNode
			Hooks   []hookStatus `json:",omitempty"`
			CSI     []*api.CSIPluginListStub
		}{drivers, hooks, csi})
	}
	p := s.page()
	if name == "" || len(drivers) > 0 {
		t := newTable("Driver", "Node ID", "Node Name", "Detected", "Healthy", "Message", "Since")
		for _, d := range drivers {
			t.row(d.Driver, shortID(d.NodeID, o.verbose), d.NodeName, d.Detected, d.Healthy, d.HealthDescription, pointInTime(d.UpdateTime))
		}
		p.table(t)
	}
	if name != "" {
		for _, d := range drivers {
			if len(d.Attributes) > 0 {
				p.section(fmt.Sprintf("Attributes of %q on node %q", d.Driver, d.NodeName))
				p.pairs(sortedPairs(d.Attributes))
			}
		}
	}
	switch {
	case name == "" && len(hooks) > 0:
		p.section("Hooks")
		p.table(hookTable(hooks))
	case len(hooks) > 0:
		p.hookDetails(hooks[0], o.verbose)
	}
	if len(csi) > 0 {
		p.section("CSI Plugins")
		t := newTable("ID", "Provider", "Controllers Healthy/Expected", "Nodes Healthy/Expected")
		for _, plugin := range csi {
			t.row(plugin.ID, plugin.Provider, fmt.Sprintf("%d/%d", plugin.ControllersHealthy, plugin.ControllersExpected),
				fmt.Sprintf("%d/%d", plugin.NodesHealthy, plugin.NodesExpected))
		}
		p.table(t)
	}
	return s.show(p)
}

// driversOfNodes returns the drivers of all nodes, or only the driver with this name.
func driversOfNodes(ctx context.Context, c *api.Client, name string) ([]driverOnNode, error) {
	nodes, _, err := c.Nodes().List(query(ctx, ""))
	if err != nil {
		return nil, failed("list nodes", err)
	}
	var drivers []driverOnNode
	for _, n := range nodes {
		for _, driver := range slices.Sorted(maps.Keys(n.Drivers)) {
			if info := n.Drivers[driver]; info != nil && (name == "" || name == driver) {
				drivers = append(drivers, driverOnNode{driver, n.ID, n.Name, info})
			}
		}
	}
	return drivers, nil
}
