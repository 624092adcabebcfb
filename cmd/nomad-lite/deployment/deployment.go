package deployment

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
)

// NewCommand returns the command "deployment" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	cmd := cli.Group("deployment", "Follow the updates of jobs, and decide about them",
		newListCommand(s),
		newStatusCommand(s),
	)
	for _, verb := range verbs {
		cmd.AddCommand(newVerbCommand(s, verb))
	}
	return cmd
}

// verb is an action on a deployment.
type verb struct {
	name, short, long string
	did               string // text printed after success
	groups            bool   // the action can be limited to some groups
	do                func(*api.Deployments, *api.Deployment, []string, *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error)
}

var verbs = []verb{
	{
		name: "fail", short: "End a deployment as failed", did: "failed",
		long: `End a deployment as failed. With auto_revert in the update block of a group, the
job goes back to its last stable version.`,
		do: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Fail(d.ID, w)
		},
	},
	{
		name: "pause", short: "Place nothing more for a deployment, until it is resumed", did: "paused",
		long: `Place nothing more for a deployment. What it has placed runs on.`,
		do: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Pause(d.ID, true, w)
		},
	},
	{
		name: "promote", short: "Let the canaries of a deployment take over", did: "promoted", groups: true,
		long: `Let the canaries of a deployment take over: the old allocations are replaced by
the new version. All canaries must be healthy.`,
		do: apiclient.Promote,
	},
	{
		name: "resume", short: "Go on with a deployment that is paused", did: "resumed",
		long: `Go on with a deployment that is paused.`,
		do: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Pause(d.ID, false, w)
		},
	},
	{
		name: "unblock", short: "Go on with a deployment that waits for other regions", did: "unblocked",
		long: `Go on with a deployment of a job in several regions that waits for the others.
On one machine there are none.`,
		do: func(a *api.Deployments, d *api.Deployment, _ []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
			return a.Unblock(d.ID, w)
		},
	},
}

type verbOptions struct {
	client apiclient.Flags
	watch  monitor.Flags
	groups []string
}

func newVerbCommand(s *cli.Streams, verb verb) *cobra.Command {
	var o verbOptions
	cmd := &cobra.Command{
		Use:               verb.name + " [flags] DEPLOYMENT",
		Short:             verb.short,
		Long:              verb.long + "\n\nThe beginning of the deployment's id is enough.",
		Example:           "  nomad-lite deployment " + verb.name + " 8fd7b6dd",
		Args:              cli.ArgCount(1, 1, "one argument: the id of a deployment, or its beginning"),
		ValidArgsFunction: cli.FirstArg(apiclient.Deployments.Complete(&o.client)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeDeployment(cmd.Context(), o, verb, args[0], s)
		},
	}
	o.client.Register(cmd)
	o.watch.Register(cmd)
	if verb.groups {
		cmd.Flags().StringArrayVar(&o.groups, "group", nil, "only this `group`; may be repeated")
	}
	return cmd
}

func changeDeployment(ctx context.Context, o verbOptions, verb verb, prefix string, s *cli.Streams) error {
	c, err := o.client.Client()
	if err != nil {
		return err
	}
	d, err := apiclient.Deployments.Find(ctx, c, prefix)
	if err != nil {
		return err
	}
	out, _, err := verb.do(c.Deployments(), d, o.groups, apiclient.WriteOptions(ctx, d.Namespace))
	if err != nil {
		return apiclient.WrapError(fmt.Sprintf("%s deployment %q", verb.name, d.ID), err)
	}
	p := output.NewPage(s)
	p.Line("Deployment %q %s", output.ShortID(d.ID, o.watch.Verbose), verb.did)
	if out.RevertedJobVersion != nil {
		p.Line("Job %q goes back to version %d", d.JobID, *out.RevertedJobVersion)
	}
	if err := output.Print(s, p); err != nil {
		return err
	}
	if verb.name == "pause" {
		return nil // there is no evaluation to watch
	}
	return o.watch.Watch(ctx, s, c, d.Namespace, out.EvalID)
}
