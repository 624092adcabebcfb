package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// newDeploymentCommand holds the commands about deployments.
func newDeploymentCommand(s *streams) *cobra.Command {
	cmd := group("deployment", "Follow the updates of jobs, and decide about them",
		newDeploymentListCommand(s),
		newDeploymentStatusCommand(s),
	)
	for _, verb := range deploymentVerbs {
		cmd.AddCommand(newDeploymentVerbCommand(s, verb))
	}
	return cmd
}

// deploymentVerb is an action on a deployment.
type deploymentVerb struct {
	name, short, long string
	did               string // text printed after success
	groups            bool   // the action can be limited to some groups
	do                func(*api.Deployments, *api.Deployment, []string, *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error)
}

var deploymentVerbs = []deploymentVerb{
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
		do: promote,
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

// promote promotes the canaries of some groups, or of all.
func promote(a *api.Deployments, d *api.Deployment, groups []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
	if len(groups) > 0 {
		return a.PromoteGroups(d.ID, groups, w)
	}
	return a.PromoteAll(d.ID, w)
}

type deploymentVerbOptions struct {
	client clientFlags
	watch  watchFlags
	groups []string
}

func newDeploymentVerbCommand(s *streams, verb deploymentVerb) *cobra.Command {
	var o deploymentVerbOptions
	cmd := &cobra.Command{
		Use:               verb.name + " [flags] DEPLOYMENT",
		Short:             verb.short,
		Long:              verb.long + "\n\nThe beginning of the deployment's id is enough.",
		Example:           "  nomad-lite deployment " + verb.name + " 8fd7b6dd",
		Args:              argCount(1, 1, "one argument: the id of a deployment, or its beginning"),
		ValidArgsFunction: firstArg(deploymentKind.complete(&o.client)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeDeployment(cmd.Context(), o, verb, args[0], s)
		},
	}
	o.client.register(cmd)
	o.watch.register(cmd)
	if verb.groups {
		cmd.Flags().StringArrayVar(&o.groups, "group", nil, "only this `group`; may be repeated")
	}
	return cmd
}

func changeDeployment(ctx context.Context, o deploymentVerbOptions, verb deploymentVerb, prefix string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	d, err := deploymentKind.find(ctx, c, prefix)
	if err != nil {
		return err
	}
	out, _, err := verb.do(c.Deployments(), d, o.groups, write(ctx, d.Namespace))
	if err != nil {
		return failed(fmt.Sprintf("%s deployment %q", verb.name, d.ID), err)
	}
	p := s.page()
	p.line("Deployment %q %s", shortID(d.ID, o.watch.verbose), verb.did)
	if out.RevertedJobVersion != nil {
		p.line("Job %q goes back to version %d", d.JobID, *out.RevertedJobVersion)
	}
	if err := s.show(p); err != nil {
		return err
	}
	if verb.name == "pause" {
		return nil // there is no evaluation to watch
	}
	return o.watch.watch(ctx, s, c, d.Namespace, out.EvalID)
}
