package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const membersHelp = `List the servers that the agent knows, and who leads them. A nomad-lite agent is its
own and only one.`

type membersOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	showTags    bool
	verbose     bool
}

// NewCommand returns the command "server" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("server", "Inspect servers",
		newMembersCommand(s),
		cli.NewUnsupportedCommand("join", cli.NoServersReason),
		cli.NewUnsupportedCommand("force-leave", cli.NoServersReason),
	)
}

func newMembersCommand(s *cli.Streams) *cobra.Command {
	var o membersOptions
	cmd := &cobra.Command{
		Use:   "members [flags]",
		Short: "List servers",
		Long:  membersHelp,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printServerMembers(cmd.Context(), o, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.showTags, "detailed", false, "show all tags")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show addresses, ports and protocols")
	return cmd
}

func printServerMembers(ctx context.Context, o membersOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	answer, err := c.Agent().MembersOpts(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list servers", err)
	}
	var members []*api.AgentMember
	if answer != nil {
		members = answer.Members
	}
	slices.SortFunc(members, func(a, b *api.AgentMember) int {
		return cmp.Or(cmp.Compare(a.Tags["region"], b.Tags["region"]), cmp.Compare(a.Tags["dc"], b.Tags["dc"]), cmp.Compare(a.Name, b.Name))
	})
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, members)
	}
	p := output.NewPage(s)
	switch {
	case len(members) == 0:
		p.AddLine("No servers")
	case o.showTags:
		t := output.NewTable("Name", "Address", "Port", "Tags")
		for _, m := range members {
			t.AddRow(m.Name, m.Addr, m.Port, formatTags(m.Tags))
		}
		p.AddTable(t)
	default:
		head := []string{"Name", "Address", "Port", "Status", "Leader", "Raft Version", "Build", "Datacenter", "Region"}
		if o.verbose {
			head = append(slices.Insert(head, 5, "Protocol"), "Tags")
		}
		leaders := map[string]string{} // region -> address of the leader
		t := output.NewTable(head...)
		for _, m := range members {
			region := m.Tags["region"]
			if _, known := leaders[region]; !known {
				// On an error, RegionLeader returns "", and then no member is shown as the leader.
				leaders[region], _ = c.Status().RegionLeader(region)
			}
			leads := leaders[region] == fmt.Sprintf("%s:%s", m.Addr, m.Tags["port"])
			row := []any{m.Name, m.Addr, m.Port, output.StatusCell(m.Status), leads, m.Tags["raft_vsn"], m.Tags["build"], m.Tags["dc"], region}
			if o.verbose {
				row = append(slices.Insert(row, 5, any(m.ProtocolCur)), formatTags(m.Tags))
			}
			t.AddRow(row...)
		}
		p.AddTable(t)
	}
	return output.PrintPage(s, p)
}

func formatTags(tags map[string]string) string {
	text := ""
	for i, pair := range output.SortedPairs(tags) {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf("%s=%s", pair[0], pair[1])
	}
	return text
}
