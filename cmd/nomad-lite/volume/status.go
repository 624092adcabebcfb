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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
)

const statusHelp = `Show the volumes that allocations can mount: the host volumes of the configuration, and those
that were created or registered. With VOLUME, the id of one of the latter or its beginning, show
that volume and the allocations that use it.`

type statusOptions struct {
	clientFlags      apiclient.Flags
	formatFlags      output.FormatFlags
	volumeTypeFilter string
	nodeIDPrefix     string
	nodePoolFilter   string
	verbose          bool
}

// NewCommand returns the command "volume" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	cmd := cli.NewGroupCommand("volume", "Manage volumes",
		newInitCommand(s), newCreateCommand(s), newRegisterCommand(s), newStatusCommand(s), newDeleteCommand(s), newClaimCommand(s))
	for _, name := range []string{"deregister", "detach", "snapshot"} {
		cmd.AddCommand(cli.NewUnsupportedCommand(name, "it is for CSI volumes, which need a cluster; 'nomad-lite volume delete' removes a host volume"))
	}
	return cmd
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:               "status [flags] [VOLUME]",
		Short:             "Show volumes",
		Long:              statusHelp,
		Args:              cli.RequireArgCount(0, 1, "the id of a volume, or nothing"),
		ValidArgsFunction: apiclient.CompleteID(&o.clientFlags, &apiclient.HostVolumeLookup),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.volumeTypeFilter != "" && o.volumeTypeFilter != "host" && o.volumeTypeFilter != "csi" {
				return cli.UsageError(cmd, errors.New("-type takes host or csi"))
			}
			if len(args) > 0 {
				return showVolume(cmd.Context(), o, args[0], s)
			}
			return showVolumes(cmd.Context(), o, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().StringVar(&o.volumeTypeFilter, "type", "", "show this `kind` only: host or csi")
	cmd.Flags().StringVar(&o.nodeIDPrefix, "node", "", "show only host volumes of the node with this `id`, or beginning of an id")
	cmd.Flags().StringVar(&o.nodePoolFilter, "node-pool", "", "show only host volumes of nodes in this `pool`")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show whole ids")
	return cmd
}

// volumesByKind are the volumes of all nodes, by kind.
type volumesByKind struct {
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
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	v, err := o.readVolumes(ctx, c)
	if err != nil {
		return err
	}
	var missing []string // messages about empty lists, which are printed on standard error, as in Nomad
	err = o.formatFlags.PrintValueOrPage(s, v, func(p *output.Page) {
		if o.volumeTypeFilter != "host" {
			p.AddSectionTitle("Container Storage Interface")
			t := output.NewTable("ID", "Name", "Namespace", "Plugin ID", "Schedulable", "Access Mode")
			for _, v := range v.CSI {
				t.AddRow(v.ID, v.Name, v.Namespace, v.PluginID, v.Schedulable, v.AccessMode)
			}
			if len(t.Rows) > 0 {
				p.AddTable(t)
			} else {
				missing = append(missing, "No CSI volumes")
			}
		}
		if o.volumeTypeFilter != "csi" && !printHostVolumes(p, v, o.verbose) {
			missing = append(missing, "No dynamic host volumes")
		}
	})
	for _, sentence := range missing {
		fmt.Fprintln(s.Err, sentence)
	}
	return err
}

// readVolumes requests the volumes that the flags select.
func (o statusOptions) readVolumes(ctx context.Context, c *api.Client) (*volumesByKind, error) {
	v := new(volumesByKind)
	var err error
	if o.volumeTypeFilter != "host" {
		if v.CSI, _, err = c.CSIVolumes().List(apiclient.QueryOptions(ctx, "")); err != nil && !apiclient.IsNotFound(err) {
			return nil, apiclient.WrapErrorWithAdvice("list CSI volumes", err)
		}
	}
	if o.volumeTypeFilter == "csi" {
		return v, nil
	}
	selection := &api.HostVolumeListRequest{NodeID: o.nodeIDPrefix, NodePool: o.nodePoolFilter}
	if v.Host, _, err = c.HostVolumes().List(selection, apiclient.QueryOptions(ctx, "")); err != nil && !apiclient.IsNotFound(err) { // "not found" means a server before Nomad 1.10, which has no host volumes
		return nil, apiclient.WrapErrorWithAdvice("list host volumes", err)
	}
	all, _, err := c.Nodes().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice("list nodes", err)
	}
	for _, stub := range all {
		if !strings.HasPrefix(stub.ID, o.nodeIDPrefix) || o.nodePoolFilter != "" && stub.NodePool != o.nodePoolFilter {
			continue
		}
		node, _, err := c.Nodes().Info(stub.ID, apiclient.QueryOptions(ctx, ""))
		if err != nil {
			return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read node %q", output.TruncateID(stub.ID)), err)
		}
		for _, name := range slices.Sorted(maps.Keys(node.HostVolumes)) {
			if h := node.HostVolumes[name]; h != nil && h.ID == "" { // a host volume with an id was created by a plugin, and is not from the configuration
				v.Configured = append(v.Configured, configuredVolume{name, h.Path, node.ID, h.ReadOnly})
			}
		}
	}
	return v, nil
}

// printHostVolumes adds the dynamic host volumes and then the host volumes of the configuration. It reports whether
// there are dynamic ones.
func printHostVolumes(p *output.Page, all *volumesByKind, verbose bool) (hasDynamic bool) {
	p.AddSectionTitle("Dynamic Host Volumes")
	dynamic := output.NewTable("ID", "Name", "Namespace", "Plugin ID", "Node ID", "Node Pool", "State")
	for _, v := range all.Host {
		dynamic.AddRow(output.ShortIDUnlessVerbose(v.ID, verbose), v.Name, v.Namespace, v.PluginID, output.ShortIDUnlessVerbose(v.NodeID, verbose), v.NodePool, output.StatusCell(string(v.State)))
	}
	if len(dynamic.Rows) > 0 {
		p.AddTable(dynamic)
	}
	p.AddSectionTitle("Host Volumes of the Configuration")
	configured := output.NewTable("Name", "Path", "Read Only", "Node ID")
	for _, v := range all.Configured {
		configured.AddRow(v.Name, v.Path, v.ReadOnly, output.ShortIDUnlessVerbose(v.NodeID, verbose))
	}
	p.AddTableOrMessage(configured, "No host volumes")
	return len(dynamic.Rows) > 0
}

// showVolume shows one host volume.
func showVolume(ctx context.Context, o statusOptions, volumeIDPrefix string, s *cli.Streams) error {
	c, found, err := apiclient.ConnectAndFind(ctx, &o.clientFlags, &apiclient.HostVolumeLookup, volumeIDPrefix)
	if err != nil {
		return err
	}
	v, _, err := c.HostVolumes().Get(found.ID, apiclient.QueryOptions(ctx, found.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read volume %q", found.ID), err)
	}
	return o.formatFlags.PrintValueOrPage(s, v, func(p *output.Page) {
		p.AddPairs(output.Pairs{
			{"ID", v.ID}, {"Name", v.Name}, {"Namespace", v.Namespace}, {"Plugin ID", v.PluginID}, {"Node ID", v.NodeID}, {"Node Pool", v.NodePool},
			{"Capacity", output.FormatBytes(uint64(max(v.CapacityBytes, 0)))}, {"State", output.StatusCell(string(v.State))}, {"Host Path", v.HostPath},
		})
		p.AddSectionTitle("Capabilities")
		t := output.NewTable("Access Mode", "Attachment Mode")
		for _, capability := range v.RequestedCapabilities {
			if capability != nil {
				t.AddRow(capability.AccessMode, capability.AttachmentMode)
			}
		}
		p.AddTable(t)
		if len(v.Parameters) > 0 && o.verbose {
			p.AddSectionTitle("Parameters")
			p.AddPairs(output.SortedPairs(v.Parameters))
		}
		p.AddSectionTitle("Allocations")
		tables.AllocationTable{Verbose: o.verbose, ShowJobID: true}.Print(p, v.Allocations)
	})
}
