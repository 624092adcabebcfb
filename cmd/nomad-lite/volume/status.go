package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
)

const statusHelp = `Show the volumes that allocations can mount: the host volumes of the nodes, and those
that were made with CSI or host volume plugins.

A nomad-lite node has the host volumes that its configuration names.`

type statusOptions struct {
	client     apiclient.Flags
	format     output.FormatFlags
	volumeType string
	nodeID     string
	nodePool   string
	verbose    bool
}

// NewCommand returns the command "volume" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	cmd := cli.NewGroupCommand("volume", "Look at volumes", newStatusCommand(s))
	for _, name := range []string{"claim", "create", "delete", "deregister", "detach", "init", "register", "snapshot"} {
		cmd.AddCommand(cli.NewUnsupportedCommand(name, "volumes are directories that the configuration of an agent names in a host_volume block; for a cluster use Nomad's own command line"))
	}
	return cmd
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show volumes",
		Long:  statusHelp,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.volumeType != "" && o.volumeType != "host" && o.volumeType != "csi" {
				return cli.UsageError(cmd, errors.New("-type takes host or csi"))
			}
			return showVolumes(cmd.Context(), o, s)
		},
	}
	o.client.Register(cmd)
	o.format.Register(cmd)
	cmd.Flags().StringVar(&o.volumeType, "type", "", "show this `kind` only: host or csi")
	cmd.Flags().StringVar(&o.nodeID, "node", "", "show only host volumes of the node with this `id`, or beginning of an id")
	cmd.Flags().StringVar(&o.nodePool, "node-pool", "", "show only host volumes of nodes in this `pool`")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show whole ids")
	return cmd
}

// volumeLists holds the volumes of a cluster by kind.
type volumeLists struct {
	Configured []configuredVolume
	Host       []*api.HostVolumeStub
	CSI        []*api.CSIVolumeListStub
}

// configuredVolume is a host volume from the configuration of a node.
type configuredVolume struct {
	Name, Path, NodeID string
	ReadOnly           bool
}

func showVolumes(ctx context.Context, o statusOptions, s *cli.Streams) error {
	c, err := o.client.Client()
	if err != nil {
		return err
	}
	v, err := o.readVolumes(ctx, c)
	if err != nil {
		return err
	}
	var missing []string // sentences about empty lists, which go to standard error, as in Nomad
	err = o.format.PrintValueOrPage(s, v, func(p *output.Page) {
		if o.volumeType != "host" {
			p.Section("Container Storage Interface")
			t := output.NewTable("ID", "Name", "Namespace", "Plugin ID", "Schedulable", "Access Mode")
			for _, v := range v.CSI {
				t.Row(v.ID, v.Name, v.Namespace, v.PluginID, v.Schedulable, v.AccessMode)
			}
			if len(t.Rows) > 0 {
				p.Table(t)
			} else {
				missing = append(missing, "No CSI volumes")
			}
		}
		if o.volumeType != "csi" && !printHostVolumes(p, v, o.verbose) {
			missing = append(missing, "No dynamic host volumes")
		}
	})
	for _, sentence := range missing {
		fmt.Fprintln(s.Err, sentence)
	}
	return err
}

// readVolumes reads the volumes that the flags select.
func (o statusOptions) readVolumes(ctx context.Context, c *api.Client) (*volumeLists, error) {
	v := new(volumeLists)
	var err error
	if o.volumeType != "host" {
		if v.CSI, _, err = c.CSIVolumes().List(apiclient.QueryOptions(ctx, "")); err != nil && !apiclient.IsNotFound(err) {
			return nil, apiclient.WrapError("list CSI volumes", err)
		}
	}
	if o.volumeType == "csi" {
		return v, nil
	}
	selection := &api.HostVolumeListRequest{NodeID: o.nodeID, NodePool: o.nodePool}
	if v.Host, _, err = c.HostVolumes().List(selection, apiclient.QueryOptions(ctx, "")); err != nil && !apiclient.IsNotFound(err) { // "not found" means a server before Nomad 1.10, which has no host volumes
		return nil, apiclient.WrapError("list host volumes", err)
	}
	all, _, err := c.Nodes().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, apiclient.WrapError("list nodes", err)
	}
	for _, stub := range all {
		if !strings.HasPrefix(stub.ID, o.nodeID) || o.nodePool != "" && stub.NodePool != o.nodePool {
			continue
		}
		node, _, err := c.Nodes().Info(stub.ID, apiclient.QueryOptions(ctx, ""))
		if err != nil {
			return nil, apiclient.WrapError(fmt.Sprintf("read node %q", output.TruncateID(stub.ID)), err)
		}
		for _, name := range slices.Sorted(maps.Keys(node.HostVolumes)) {
			if h := node.HostVolumes[name]; h != nil && h.ID == "" { // a host volume with an id was created by a plugin, and is not from the configuration
				v.Configured = append(v.Configured, configuredVolume{name, h.Path, node.ID, h.ReadOnly})
			}
		}
	}
	return v, nil
}

// printHostVolumes adds the host volumes, first those that Nomad's command line lists. It reports
// whether there are such volumes.
func printHostVolumes(p *output.Page, all *volumeLists, verbose bool) bool {
	p.Section("Dynamic Host Volumes")
	dynamic := output.NewTable("ID", "Name", "Namespace", "Plugin ID", "Node ID", "Node Pool", "State")
	for _, v := range all.Host {
		dynamic.Row(output.ShortID(v.ID, verbose), v.Name, v.Namespace, v.PluginID, output.ShortID(v.NodeID, verbose), v.NodePool, output.StatusCell(string(v.State)))
	}
	if len(dynamic.Rows) > 0 {
		p.Table(dynamic)
	}
	p.Section("Host Volumes of the Configuration")
	configured := output.NewTable("Name", "Path", "Read Only", "Node ID")
	for _, v := range all.Configured {
		configured.Row(v.Name, v.Path, v.ReadOnly, output.ShortID(v.NodeID, verbose))
	}
	p.TableOrMessage(configured, "No host volumes")
	return len(dynamic.Rows) > 0
}
