package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const volumeStatusHelp = `Show the volumes that allocations can mount: the host volumes of the nodes, and those
that were made with CSI or host volume plugins.

A nomad-lite node has the host volumes that its configuration names.`

type volumeStatusOptions struct {
	client  clientFlags
	format  formatFlags
	kind    string
	verbose bool
}

func newVolumeCommand(s *streams) *cobra.Command {
	cmd := group("volume", "Look at volumes", newVolumeStatusCommand(s))
	for _, name := range []string{"claim", "create", "delete", "deregister", "detach", "init", "register", "snapshot"} {
		cmd.AddCommand(clusterCommands(name, "volumes are directories that the configuration of an agent names in a host_volume block; for a cluster use Nomad's own command line"))
	}
	return cmd
}

func newVolumeStatusCommand(s *streams) *cobra.Command {
	var o volumeStatusOptions
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show volumes",
		Long:  volumeStatusHelp,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.kind != "" && o.kind != "host" && o.kind != "csi" {
				return usageError(cmd, errors.New("-type takes host or csi"))
			}
			return volumeStatus(cmd.Context(), o, s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().StringVar(&o.kind, "type", "", "show this `kind` only: host or csi")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show whole ids")
	return cmd
}

// volumes are the volumes of all kinds.
type volumes struct {
	Configured []configuredVolume
	Host       []*api.HostVolumeStub
	CSI        []*api.CSIVolumeListStub
}

// configuredVolume is a host volume from the configuration of a node.
type configuredVolume struct {
	Name, Path, NodeID string
	ReadOnly           bool
}

func volumeStatus(ctx context.Context, o volumeStatusOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	v, err := readVolumes(ctx, c, o.kind)
	if err != nil {
		return err
	}
	return o.format.show(s, v, func(p *page) {
		if o.kind != "csi" {
			p.hostVolumes(v, o.verbose)
		}
		if o.kind != "host" {
			p.section("Container Storage Interface")
			t := newTable("ID", "Name", "Namespace", "Plugin ID", "Schedulable", "Access Mode")
			for _, v := range v.CSI {
				t.row(v.ID, v.Name, v.Namespace, v.PluginID, v.Schedulable, v.AccessMode)
			}
			p.tableOr(t, "No CSI volumes")
		}
	})
}

// readVolumes reads the volumes of one kind, or of all kinds.
func readVolumes(ctx context.Context, c *api.Client, kind string) (*volumes, error) {
	v := new(volumes)
	var err error
	if kind != "host" {
		if v.CSI, _, err = c.CSIVolumes().List(query(ctx, "")); err != nil && !unknown(err) {
			return nil, failed("list CSI volumes", err)
		}
	}
	if kind == "csi" {
		return v, nil
	}
	if v.Host, _, err = c.HostVolumes().List(nil, query(ctx, "")); err != nil && !unknown(err) { // servers before 1.10 have no host volumes
		return nil, failed("list host volumes", err)
	}
	all, _, err := c.Nodes().List(query(ctx, ""))
	if err != nil {
		return nil, failed("list nodes", err)
	}
	for _, stub := range all {
		node, _, err := c.Nodes().Info(stub.ID, query(ctx, ""))
		if err != nil {
			return nil, failed(fmt.Sprintf("read node %q", short(stub.ID)), err)
		}
		for _, name := range slices.Sorted(maps.Keys(node.HostVolumes)) {
			if h := node.HostVolumes[name]; h != nil && h.ID == "" { // a volume with an id was created by a plugin
				v.Configured = append(v.Configured, configuredVolume{name, h.Path, node.ID, h.ReadOnly})
			}
		}
	}
	return v, nil
}

func (p *page) hostVolumes(all *volumes, verbose bool) {
	configured := newTable("Name", "Path", "Read Only", "Node ID")
	for _, v := range all.Configured {
		configured.row(v.Name, v.Path, v.ReadOnly, shortID(v.NodeID, verbose))
	}
	made := newTable("ID", "Name", "Namespace", "Plugin ID", "Node ID", "State")
	for _, v := range all.Host {
		made.row(shortID(v.ID, verbose), v.Name, v.Namespace, v.PluginID, shortID(v.NodeID, verbose), statusCell(string(v.State)))
	}
	p.section("Host Volumes of the Configuration")
	p.tableOr(configured, "No host volumes")
	p.section("Dynamic Host Volumes")
	p.tableOr(made, "No dynamic host volumes")
}
