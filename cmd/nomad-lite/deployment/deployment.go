package deployment

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// NewCommand returns the command "deployment" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	cmd := cli.NewGroupCommand("deployment", "Inspect and control deployments",
		newListCommand(s),
		newStatusCommand(s),
	)
	for _, command := range changeSubcommands {
		cmd.AddCommand(newChangeCommand(s, command))
	}
	return cmd
}

// changeSubcommand describes a subcommand that changes one deployment.
type changeSubcommand struct {
	name, shortHelp, longHelp string
	pastParticiple            string // past participle for the message after a success, such as "paused"
	hasGroupFlag              bool   // the subcommand has the flag -group
	callAPI                   func(deployments *api.Deployments, d *api.Deployment, groups []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error)
}

var changeSubcommands = []changeSubcommand{
	{
		name: "fail", shortHelp: "Mark a deployment as failed", pastParticiple: "failed",
		longHelp: `Mark a deployment as failed. With auto_revert in the update block of a group, the
job is reverted to its last stable version.`,
		callAPI: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Fail(d.ID, w)
		},
	},
	{
		name: "pause", shortHelp: "Pause a deployment", pastParticiple: "paused",
		longHelp: `Pause a deployment: no further allocations are placed. Placed allocations continue.`,
		callAPI: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Pause(d.ID, true, w)
		},
	},
	{
		name: "promote", shortHelp: "Promote the canaries of a deployment", pastParticiple: "promoted", hasGroupFlag: true,
		longHelp: `Promote the canaries of a deployment: the old allocations are replaced by
the new version. All canaries must be healthy.`,
		callAPI: apiclient.PromoteDeploymentGroupsOrAll,
	},
	{
		name: "resume", shortHelp: "Resume a paused deployment", pastParticiple: "resumed",
		longHelp: `Resume a paused deployment.`,
		callAPI: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Pause(d.ID, false, w)
		},
	},
	{
		name: "unblock", shortHelp: "Unblock a deployment that waits for other regions", pastParticiple: "unblocked",
		longHelp: `Unblock a deployment of a multi-region job that waits for other regions. A single
machine has no such deployments.`,
		callAPI: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Unblock(d.ID, w)
		},
	},
}

type changeOptions struct {
	clientFlags  apiclient.Flags
	monitorFlags monitor.Flags
	groups       []string
}

func newChangeCommand(s *cli.Streams, command changeSubcommand) *cobra.Command {
	var o changeOptions
	cmd := &cobra.Command{
		Use:               command.name + " [flags] DEPLOYMENT",
		Short:             command.shortHelp,
		Long:              command.longHelp + "\n\nThe beginning of the deployment's id is enough.",
		Example:           "  nomad-lite deployment " + command.name + " 8fd7b6dd",
		Args:              cli.RequireArgCount(1, 1, "one argument: the id of a deployment, or its beginning"),
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.DeploymentLookup)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeDeployment(cmd.Context(), o, command, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	if command.hasGroupFlag {
		cmd.Flags().StringArrayVar(&o.groups, "group", nil, "only this `group`; may be repeated")
	}
	return cmd
}

func changeDeployment(ctx context.Context, o changeOptions, command changeSubcommand, deploymentIDPrefix string, s *cli.Streams) error {
	c, d, err := apiclient.ConnectAndFind(ctx, &o.clientFlags, &apiclient.DeploymentLookup, deploymentIDPrefix)
	if err != nil {
		return err
	}
	out, _, err := command.callAPI(c.Deployments(), d, o.groups, apiclient.WriteOptions(ctx, d.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("%s deployment %q", command.name, d.ID), err)
	}
	p := output.NewPage(s)
	if out.RevertedJobVersion != nil {
		p.AddLine("Deployment %q %s. Auto-reverted to job version %d.", d.ID, command.pastParticiple, *out.RevertedJobVersion)
	} else {
		p.AddLine("Deployment %q %s", d.ID, command.pastParticiple)
	}
	if err := output.PrintPage(s, p); err != nil {
		return err
	}
	if command.name == "pause" || command.name == "unblock" && o.monitorFlags.Detach {
		return nil // pausing a deployment creates no evaluation, and Nomad prints none for unblock
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, d.Namespace, out.EvalID)
}
