package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const scalingPolicyHelp = `A scaling policy is the scaling block of a group of a job. Something that scales, such
as the Nomad Autoscaler, reads it.`

func newScalingCommand(s *streams) *cobra.Command {
	return group("scaling", "Look at the scaling policies of jobs",
		group("policy", "Look at the scaling policies of jobs", newScalingPolicyListCommand(s), newScalingPolicyInfoCommand(s)))
}

type scalingPolicyOptions struct {
	client   clientFlags
	format   formatFlags
	job, typ string
	verbose  bool
}

func newScalingPolicyListCommand(s *streams) *cobra.Command {
	var o scalingPolicyOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List scaling policies",
		Long:  scalingPolicyHelp,
		Args:  argCount(0, 0, "no arguments"),
		Example: `  nomad-lite scaling policy list
  nomad-lite scaling policy list -job web`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := o.list(cmd.Context())
			if err != nil {
				return err
			}
			return o.format.show(s, all, func(p *page) {
				p.tableOr(policyTable(all, o.verbose), "No policies found")
			})
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().StringVar(&o.job, "job", "", "only those of this `job`")
	cmd.Flags().StringVar(&o.typ, "type", "", "only those of this `type`, such as horizontal")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func (o *scalingPolicyOptions) list(ctx context.Context) ([]*api.ScalingPolicyListStub, error) {
	c, err := o.client.client()
	if err != nil {
		return nil, err
	}
	q := query(ctx, "")
	q.Params = map[string]string{}
	if o.job != "" {
		q.Params["job"] = o.job
	}
	if o.typ != "" {
		q.Params["type"] = o.typ
	}
	all, _, err := c.Scaling().ListPolicies(q)
	if err != nil {
		return nil, failed("list scaling policies", err)
	}
	return all, nil
}

func policyTable(all []*api.ScalingPolicyListStub, verbose bool) *table {
	t := newTable("ID", "Enabled", "Type", "Target")
	for _, policy := range all {
		t.row(shortID(policy.ID, verbose), policy.Enabled, policy.Type, targetText(policy.Target))
	}
	return t
}

// targetText returns the target of a policy on one line.
func targetText(target map[string]string) string {
	var parts []string
	for _, pair := range sortedPairs(target) {
		parts = append(parts, fmt.Sprintf("%v:%v", pair[0], pair[1]))
	}
	return strings.Join(parts, ",")
}

func newScalingPolicyInfoCommand(s *streams) *cobra.Command {
	var o scalingPolicyOptions
	cmd := &cobra.Command{
		Use:     "info [flags] POLICY",
		Short:   "Show a scaling policy",
		Long:    scalingPolicyHelp + "\n\nThe beginning of the policy's id is enough.",
		Example: `  nomad-lite scaling policy info 8fd7b6dd`,
		Args:    argCount(1, 1, "the id of a scaling policy, or its beginning; 'nomad-lite scaling policy list' lists them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			policy, err := o.find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if o.format.wanted() {
				return o.format.print(s, policy)
			}
			rule, err := json.MarshalIndent(policy.Policy, "", "  ")
			if err != nil {
				return err
			}
			p := s.page()
			p.pairs(pairs{
				{"ID", shortID(policy.ID, o.verbose)}, {"Enabled", valueOf(policy.Enabled)}, {"Type", policy.Type}, {"Target", targetText(policy.Target)},
				{"Min", valueOf(policy.Min)}, {"Max", valueOf(policy.Max)},
			})
			p.section("Policy")
			p.lines(string(rule))
			return s.show(p)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print the whole id")
	return cmd
}

// find returns the only policy with this id prefix.
func (o *scalingPolicyOptions) find(ctx context.Context, prefix string) (*api.ScalingPolicy, error) {
	all, err := o.list(ctx)
	if err != nil {
		return nil, err
	}
	var near []*api.ScalingPolicyListStub
	for _, policy := range all {
		if strings.HasPrefix(policy.ID, prefix) {
			near = append(near, policy)
		}
	}
	switch len(near) {
	case 0:
		return nil, fmt.Errorf("there is no scaling policy whose id begins with %q\nSee those that there are: nomad-lite scaling policy list", prefix)
	case 1:
		c, err := o.client.client()
		if err != nil {
			return nil, err
		}
		policy, _, err := c.Scaling().GetPolicy(near[0].ID, query(ctx, ""))
		if err != nil {
			return nil, failed(fmt.Sprintf("read scaling policy %q", prefix), err)
		}
		return policy, nil
	}
	return nil, ambiguous("scaling policy", prefix, policyTable(near, true))
}
