package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const allocChecksHelp = `Show the checks of the services of an allocation (those with provider "nomad"), and
what they found last.

Exit codes: 0, or 1 when there is no such allocation.`

type allocChecksOptions struct {
	client  clientFlags
	format  formatFlags
	verbose bool
}

func newAllocChecksCommand(s *streams) *cobra.Command {
	var o allocChecksOptions
	cmd := &cobra.Command{
		Use:     "checks [flags] ALLOC",
		Short:   "Show the service checks of an allocation",
		Long:    allocChecksHelp,
		Example: "  nomad-lite alloc checks 8ba85cef",
		Args:    oneAlloc,
		RunE: func(cmd *cobra.Command, args []string) error {
			return allocChecks(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: firstArg(allocKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show whole ids")
	return cmd
}

func allocChecks(ctx context.Context, o allocChecksOptions, id string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	found, err := allocKind.find(ctx, c, id)
	if err != nil {
		return err
	}
	checks, err := c.Allocations().Checks(found.ID, query(ctx, found.Namespace))
	if err != nil {
		return failed(fmt.Sprintf("read the checks of allocation %q", short(found.ID)), err)
	}
	if o.format.wanted() {
		return o.format.print(s, checks)
	}
	p := s.page()
	if len(checks) == 0 {
		p.line("Allocation %q has no service checks", short(found.ID))
		return s.show(p)
	}
	p.line("Status of %d Nomad Service Checks", len(checks))
	for _, check := range sortedChecks(checks) {
		rows := pairs{
			{"ID", shortID(check.ID, o.verbose)},
			{"Name", check.Check},
			{"Group", check.Group},
			{"Task", cmp.Or(check.Task, "(group)")},
			{"Service", check.Service},
			{"Status", statusCell(check.Status)},
		}
		if check.StatusCode > 0 {
			rows = append(rows, [2]any{"StatusCode", check.StatusCode})
		}
		rows = append(rows, pairs{
			{"Mode", check.Mode},
			{"Timestamp", date(check.Timestamp * int64(time.Second))},
			{"Output", check.Output},
		}...)
		p.line("")
		p.pairs(rows)
	}
	return s.show(p)
}

func sortedChecks(checks api.AllocCheckStatuses) []*api.AllocCheckStatus {
	sorted := make([]*api.AllocCheckStatus, 0, len(checks))
	for _, check := range checks {
		sorted = append(sorted, &check)
	}
	slices.SortFunc(sorted, func(a, b *api.AllocCheckStatus) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Check, b.Check), cmp.Compare(a.ID, b.ID))
	})
	return sorted
}
