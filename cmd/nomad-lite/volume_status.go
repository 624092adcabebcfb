package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const volumeStatusHelp = `Show the volumes that allocations can mount: the host volumes of the nodes, and those
that were made with CSI or host volume plugins.

A nomad-lite node has the host volumes that its configuration names.`

type volumeStatusOptions struct {
	client  clientFlags
	kind    string
	verbose bool
}

func newVolumeCommand(s *streams) *cobra.Command {
	cmd := group("volume", "Look at volumes", newVolumeStatusCommand(s))
	for _, name := range []string{"claim", "create", "delete", "deregister", "detach", "init", "register", "snapshot"} {
		cmd.AddCommand(elsewhere(name, "volumes are directories that the configuration of an agent names in a host_volume block; for a cluster use Nomad's own command line"))
	}
	return cmd
}

func newVolumeStatusCommand(s *streams) *cobra.Command {
	var o volumeStatusOptions
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show volumes",
		Long:  volumeStatusHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.kind != "" && o.kind != "host" && o.kind != "csi" {
				return usageError(cmd, errors.New("-type takes host or csi"))
			}
			return volumeStatus(cmd.Context(), o, s)
		},
	}
	o.client.register(cmd)
	cmd.Flags().StringVar(&o.kind, "type", "", "show this `kind` only: host or csi")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show whole ids")
	return cmd
}

func volumeStatus(ctx context.Context, o volumeStatusOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	p := s.page()
	if o.kind != "csi" {
		if err := p.hostVolumes(ctx, c, o); err != nil {
			return err
		}
	}
	if o.kind != "host" {
		volumes, _, err := c.CSIVolumes().List(query(ctx, ""))
		if err != nil && !unknown(err) {
			return failed("list CSI volumes", err)
		}
		p.section("Container Storage Interface")
		t := newTable("ID", "Name", "Namespace", "Plugin ID", "Schedulable", "Access Mode")
		for _, v := range volumes {
			t.row(v.ID, v.Name, v.Namespace, v.PluginID, v.Schedulable, v.AccessMode)
		}
		p.tableOr(t, "No CSI volumes")
	}
	return s.show(p)
}

// tableOr adds a table, or a line that says that there is nothing to show.
func (p *page) tableOr(t *table, nothing string) {
	if len(t.rows) == 0 {
		p.line("%s", nothing)
		return
	}
	p.table(t)
}

func (p *page) hostVolumes(ctx context.Context, c *api.Client, o volumeStatusOptions) error {
	made, _, err := c.HostVolumes().List(nil, query(ctx, ""))
	if err != nil && !unknown(err) { // servers before 1.10 have none
		return failed("list host volumes", err)
	}
	t := newTable("ID", "Name", "Namespace", "Plugin ID", "Node ID", "State")
	for _, v := range made {
		t.row(shortID(v.ID, o.verbose), v.Name, v.Namespace, v.PluginID, shortID(v.NodeID, o.verbose), statusCell(string(v.State)))
	}
	all, _, err := c.Nodes().List(query(ctx, ""))
	if err != nil {
		return failed("list nodes", err)
	}
	configured := newTable("Name", "Path", "Read Only", "Node ID")
	for _, stub := range all {
		node, _, err := c.Nodes().Info(stub.ID, query(ctx, ""))
		if err != nil {
			return failed(fmt.Sprintf("read node %q", short(stub.ID)), err)
		}
		for _, pair := range sortedPairs(hostPaths(node)) {
			v := node.HostVolumes[fmt.Sprint(pair[0])]
			configured.row(pair[0], v.Path, v.ReadOnly, shortID(node.ID, o.verbose))
		}
	}
	p.section("Host Volumes of the Configuration")
	p.tableOr(configured, "No host volumes")
	p.section("Dynamic Host Volumes")
	p.tableOr(t, "No dynamic host volumes")
	return nil
}

// hostPaths are the paths of those volumes that were not made by a plugin.
func hostPaths(node *api.Node) map[string]string {
	paths := map[string]string{}
	for name, v := range node.HostVolumes {
		if v != nil && v.ID == "" {
			paths[name] = v.Path
		}
	}
	return paths
}
