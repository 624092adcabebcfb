package volume

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const claimListHelp = `List the claims of groups with sticky volumes: the allocations of such a group are placed
only with the volume that the first one had.`

type claimListOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	listRequest api.TaskGroupHostVolumeClaimsListRequest
	verbose     bool
}

func newClaimCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("claim", "List and delete claims on sticky volumes", newClaimListCommand(s), newClaimDeleteCommand(s))
}

func newClaimListCommand(s *cli.Streams) *cobra.Command {
	var o claimListOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List claims on sticky volumes",
		Long:  claimListHelp,
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.listClaims(cmd.Context(), s) },
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().StringVar(&o.listRequest.JobID, "job", "", "only claims of the `job` with this id")
	cmd.Flags().StringVar(&o.listRequest.TaskGroup, "group", "", "only claims of the `group` with this name")
	cmd.Flags().StringVar(&o.listRequest.VolumeName, "volume-name", "", "only claims of the volume with this `name`")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func (o *claimListOptions) listClaims(ctx context.Context, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	claims, _, err := c.TaskGroupHostVolumeClaims().List(&o.listRequest, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list claims", err)
	}
	return o.formatFlags.PrintValueOrPage(s, claims, func(p *output.Page) {
		t := output.NewTable("ID", "Namespace", "Job ID", "Volume ID", "Volume Name")
		for _, claim := range claims {
			t.AddRow(output.ShortIDUnlessVerbose(claim.ID, o.verbose), claim.Namespace, claim.JobID, output.ShortIDUnlessVerbose(claim.VolumeID, o.verbose), claim.VolumeName)
		}
		p.AddTableOrMessage(t, "No task group host volume claims found")
	})
}

const claimDeleteHelp = `Delete the claim of a group, so that its next allocation can use another volume.`

func newClaimDeleteCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	cmd := &cobra.Command{
		Use:               "delete [flags] CLAIM",
		Short:             "Delete a claim on a sticky volume",
		Long:              claimDeleteHelp,
		Args:              cli.RequireArgCount(1, 1, "one argument: the id of a claim, or its beginning"),
		ValidArgsFunction: apiclient.CompleteID(&client, &apiclient.VolumeClaimLookup),
		RunE:              func(cmd *cobra.Command, args []string) error { return deleteClaim(cmd.Context(), &client, args[0], s) },
	}
	client.Register(cmd)
	return cmd
}

func deleteClaim(ctx context.Context, clientFlags *apiclient.Flags, claimIDPrefix string, s *cli.Streams) error {
	c, claim, err := apiclient.ConnectAndFind(ctx, clientFlags, &apiclient.VolumeClaimLookup, claimIDPrefix)
	if err != nil {
		return err
	}
	if _, err := c.TaskGroupHostVolumeClaims().Delete(claim.ID, apiclient.WriteOptions(ctx, claim.Namespace)); err != nil {
		return apiclient.WrapErrorWithAdvice("delete claim", err)
	}
	_, err = fmt.Fprintf(s.Out, "Task group host volume claim %s successfully deleted\n", claim.ID)
	return err
}
