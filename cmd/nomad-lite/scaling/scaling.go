package scaling

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const policyHelp = `A scaling policy is the scaling block of a group of a job. An autoscaler, such
as the Nomad Autoscaler, reads it.`

// NewCommand returns the command "scaling" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("scaling", "List and inspect scaling policies",
		cli.NewGroupCommand("policy", "List and inspect scaling policies", newPolicyListCommand(s), newPolicyInfoCommand(s)))
}

type policyOptions struct {
	clientFlags                 apiclient.Flags
	formatFlags                 output.FormatFlags
	jobFilter, policyTypeFilter string
	verbose                     bool
}

func newPolicyListCommand(s *cli.Streams) *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List scaling policies",
		Long:  policyHelp,
		Args:  cli.RequireArgCount(0, 0, "no arguments"),
		Example: `  nomad-lite scaling policy list
  nomad-lite scaling policy list -job web`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := o.listPolicies(cmd.Context())
			if err != nil {
				return err
			}
			return o.formatFlags.PrintValueOrPage(s, all, func(p *output.Page) {
				p.AddTableOrMessage(newPolicyTable(all, o.verbose), "No policies found")
			})
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().StringVar(&o.jobFilter, "job", "", "list only policies of this `job`")
	cmd.Flags().StringVar(&o.policyTypeFilter, "type", "", "list only policies of this `type`, such as horizontal")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func (o *policyOptions) listPolicies(ctx context.Context) ([]*api.ScalingPolicyListStub, error) {
	c, err := o.clientFlags.Client()
	if err != nil {
		return nil, err
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Params = map[string]string{}
	if o.jobFilter != "" {
		q.Params["job"] = o.jobFilter
	}
	if o.policyTypeFilter != "" {
		q.Params["type"] = o.policyTypeFilter
	}
	all, _, err := c.Scaling().ListPolicies(q)
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice("list scaling policies", err)
	}
	return all, nil
}

func newPolicyTable(all []*api.ScalingPolicyListStub, verbose bool) *output.Table {
	t := output.NewTable("ID", "Enabled", "Type", "Target")
	for _, policy := range all {
		t.AddRow(output.ShortIDUnlessVerbose(policy.ID, verbose), policy.Enabled, policy.Type, formatTarget(policy.Target))
	}
	return t
}

// targetKeys are the keys of a policy's target in the order of Nomad's output. Other keys follow in alphabetical order.
var targetKeys = []string{"Namespace", "Job", "Group"}

// formatTarget returns the target of a policy in one line.
func formatTarget(target map[string]string) string {
	var targetPairs []string
	add := func(key string) { targetPairs = append(targetPairs, key+":"+target[key]) }
	for _, key := range targetKeys {
		if target[key] != "" {
			add(key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(target)) {
		if !slices.Contains(targetKeys, key) {
			add(key)
		}
	}
	return strings.Join(targetPairs, ",")
}

func newPolicyInfoCommand(s *cli.Streams) *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:     "info [flags] POLICY",
		Short:   "Show a scaling policy",
		Long:    policyHelp + "\n\nThe beginning of the policy's id is enough.",
		Example: `  nomad-lite scaling policy info 8fd7b6dd`,
		Args:    cli.RequireArgCount(1, 1, "the id of a scaling policy, or its beginning; 'nomad-lite scaling policy list' lists them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			policy, err := o.findPolicyByPrefix(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if o.formatFlags.IsSet() {
				return o.formatFlags.Print(s, policy)
			}
			rule, err := json.MarshalIndent(policy.Policy, "", "  ")
			if err != nil {
				return err
			}
			p := output.NewPage(s)
			p.AddPairs(output.Pairs{
				{"ID", output.ShortIDUnlessVerbose(policy.ID, o.verbose)}, {"Enabled", pointer.Value(policy.Enabled)}, {"Target", formatTarget(policy.Target)},
				{"Min", pointer.Value(policy.Min)}, {"Max", pointer.Value(policy.Max)}, {"Type", policy.Type},
			})
			p.AddSectionTitle("Policy:")
			p.AddSanitizedLines(string(rule))
			return output.PrintPage(s, p)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print the whole id")
	return cmd
}

// findPolicyByPrefix returns the only policy whose ID has this prefix.
func (o *policyOptions) findPolicyByPrefix(ctx context.Context, prefix string) (*api.ScalingPolicy, error) {
	all, err := o.listPolicies(ctx)
	if err != nil {
		return nil, err
	}
	var matches []*api.ScalingPolicyListStub
	for _, policy := range all {
		if strings.HasPrefix(policy.ID, prefix) {
			matches = append(matches, policy)
		}
	}
	switch len(matches) {
	case 0:
		return nil, fmt.Errorf("no scaling policies with prefix or ID %q found\nSee those that there are: nomad-lite scaling policy list", prefix)
	case 1:
		c, err := o.clientFlags.Client()
		if err != nil {
			return nil, err
		}
		policy, _, err := c.Scaling().GetPolicy(matches[0].ID, apiclient.QueryOptions(ctx, ""))
		if err != nil {
			return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read scaling policy %q", prefix), err)
		}
		return policy, nil
	}
	return nil, apiclient.NewAmbiguousPrefixError("Prefix matched multiple scaling policies", newPolicyTable(matches, true))
}
