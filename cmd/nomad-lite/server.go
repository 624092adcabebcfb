package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const serverMembersHelp = `List the servers that the agent knows, and who leads them. A nomad-lite agent is its
own and only one.`

type serverMembersOptions struct {
	client   clientFlags
	format   formatFlags
	detailed bool
	verbose  bool
}

func newServerCommand(s *streams) *cobra.Command {
	return group("server", "Look at the servers",
		newServerMembersCommand(s),
		clusterCommands("join", noServers),
		clusterCommands("force-leave", noServers),
	)
}

func newServerMembersCommand(s *streams) *cobra.Command {
	var o serverMembersOptions
	cmd := &cobra.Command{
		Use:   "members [flags]",
		Short: "List servers",
		Long:  serverMembersHelp,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serverMembers(cmd.Context(), o, s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.detailed, "detailed", false, "show all tags")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show addresses, ports and protocols")
	return cmd
}

func serverMembers(ctx context.Context, o serverMembersOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	answer, err := c.Agent().MembersOpts(query(ctx, ""))
	if err != nil {
		return failed("list servers", err)
	}
	var members []*api.AgentMember
	if answer != nil {
		members = answer.Members
	}
	slices.SortFunc(members, func(a, b *api.AgentMember) int {
		return cmp.Or(cmp.Compare(a.Tags["region"], b.Tags["region"]), cmp.Compare(a.Tags["dc"], b.Tags["dc"]), cmp.Compare(a.Name, b.Name))
	})
	if o.format.wanted() {
		return o.format.print(s, members)
	}
	p := s.page()
	switch {
	case len(members) == 0:
		p.line("No servers")
	case o.detailed:
		t := newTable("Name", "Address", "Port", "Tags")
		for _, m := range members {
			t.row(m.Name, m.Addr, m.Port, tagText(m.Tags))
		}
		p.table(t)
	default:
		head := []string{"Name", "Address", "Port", "Status", "Leader", "Raft Version", "Build", "Datacenter", "Region"}
		if o.verbose {
			head = append(head, "Protocol", "ID")
		}
		leaders := map[string]string{} // leader by region
		t := newTable(head...)
		for _, m := range members {
			region := m.Tags["region"]
			if _, known := leaders[region]; !known {
				// After an error the leader is unknown and shown as missing.
				leaders[region], _ = c.Status().RegionLeader(region)
			}
			leads := leaders[region] == fmt.Sprintf("%s:%s", m.Addr, m.Tags["port"])
			row := []any{m.Name, m.Addr, m.Port, statusCell(m.Status), leads, m.Tags["raft_vsn"], m.Tags["build"], m.Tags["dc"], region}
			if o.verbose {
				row = append(row, m.ProtocolCur, m.Tags["id"])
			}
			t.row(row...)
		}
		p.table(t)
	}
	return s.show(p)
}

func tagText(tags map[string]string) string {
	text := ""
	for i, pair := range sortedPairs(tags) {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf("%s=%s", pair[0], pair[1])
	}
	return text
}
