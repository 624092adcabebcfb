package alloc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const checksHelp = `Show the checks of the services of an allocation (those with provider "nomad"), and
their last results.

Exit codes: 0, or 1 when there is no such allocation.`

type checksOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
}

func newChecksCommand(s *cli.Streams) *cobra.Command {
	var o checksOptions
	cmd := &cobra.Command{
		Use:     "checks [flags] ALLOC",
		Short:   "Show the service checks of an allocation",
		Long:    checksHelp,
		Example: "  nomad-lite alloc checks 8ba85cef",
		Args:    oneAllocArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return showAllocChecks(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.AllocationLookup)),
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	return cmd
}

func showAllocChecks(ctx context.Context, o checksOptions, allocIDPrefix string, s *cli.Streams) error {
	c, found, err := apiclient.ConnectAndFind(ctx, &o.clientFlags, &apiclient.AllocationLookup, allocIDPrefix)
	if err != nil {
		return err
	}
	checks, err := c.Allocations().Checks(found.ID, apiclient.QueryOptions(ctx, found.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read the checks of allocation %q", output.TruncateID(found.ID)), err)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, checks)
	}
	p := output.NewPage(s)
	p.AddLine("Status of %d Nomad Service Checks", len(checks))
	for _, check := range sortChecksByService(checks) {
		rows := output.Pairs{
			{"ID", check.ID},
			{"Name", check.Check},
			{"Group", check.Group},
			{"Task", cmp.Or(check.Task, "(group)")},
			{"Service", check.Service},
			{"Status", output.StatusCell(check.Status)},
			{"Mode", check.Mode},
			{"Timestamp", output.FormatDate(check.Timestamp * int64(time.Second))},
		}
		if check.StatusCode > 0 {
			rows = append(rows, [2]any{"StatusCode", check.StatusCode})
		}
		p.AddLine("")
		p.AddPairsWithSeparator(" =  ", append(rows, [2]any{"Output", check.Output}))
	}
	return output.PrintPage(s, p)
}

func sortChecksByService(checks api.AllocCheckStatuses) []*api.AllocCheckStatus {
	sorted := make([]*api.AllocCheckStatus, 0, len(checks))
	for _, check := range checks {
		sorted = append(sorted, &check)
	}
	slices.SortFunc(sorted, func(a, b *api.AllocCheckStatus) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Check, b.Check), cmp.Compare(a.ID, b.ID))
	})
	return sorted
}
