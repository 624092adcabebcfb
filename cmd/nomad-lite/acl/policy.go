package acl

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const policyApplyHelp = `Create or update an ACL policy. FILE, or - for standard input, has its rules in HCL or JSON.

With -job, the tasks of the job have the policy, without a token; -group and -task narrow that.
-namespace alone stands for all jobs of the namespace.

Exit codes: 0, or 1 when it is refused.`

var onePolicyArg = cli.RequireArgCount(1, 1, "the name of a policy; 'nomad-lite acl policy list' lists them")

func newPolicyApplyCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	var policy api.ACLPolicy
	var job api.JobACL
	cmd := o.newCommand("apply [flags] NAME FILE", "Create or update an ACL policy", policyApplyHelp, cli.RequireArgCount(2, 2, "the name of the policy and a file with its rules"),
		func(ctx context.Context, c *api.Client, args []string) error {
			job.Namespace = o.clientFlags.Namespace
			switch {
			case job.JobID != "" && job.Namespace == "":
				return errors.New("-namespace is required if -job is set")
			case job.Group != "" && job.JobID == "":
				return errors.New("-job is required if -group is set")
			case job.Task != "" && job.Group == "":
				return errors.New("-group is required if -task is set")
			case job.Namespace != "":
				policy.JobACL = &job
			}
			rules, err := s.ReadFileOrStdin(args[1])
			if err != nil {
				return fmt.Errorf("read the rules: %w", err)
			}
			policy.Name, policy.Rules = args[0], string(rules)
			if _, err := c.ACLPolicies().Upsert(&policy, apiclient.WriteOptions(ctx, "")); err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("apply policy %q", policy.Name), err)
			}
			_, err = fmt.Fprintf(s.Out, "Successfully wrote %q ACL policy!\n", policy.Name)
			return err
		})
	cmd.Flags().StringVar(&policy.Description, "description", "", "`text` about it")
	cmd.Flags().StringVar(&job.JobID, "job", "", "`job` whose tasks have the policy; needs -namespace")
	cmd.Flags().StringVar(&job.Group, "group", "", "`group` of the job")
	cmd.Flags().StringVar(&job.Task, "task", "", "`task` of the group")
	return cmd
}

func newPolicyDeleteCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.completeArg(o.newCommand("delete [flags] NAME", "Delete an ACL policy", "", onePolicyArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			if _, err := c.ACLPolicies().Delete(args[0], apiclient.WriteOptions(ctx, "")); err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("delete policy %q", args[0]), err)
			}
			p := output.NewPage(s)
			p.AddLine("Successfully deleted %s policy!", args[0])
			return output.PrintPage(s, p)
		}), policyNames)
}

func newPolicyInfoCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.withFormat(o.completeArg(o.newCommand("info [flags] NAME", "Show an ACL policy", "", onePolicyArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			policy, _, err := c.ACLPolicies().Info(args[0], apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read policy %q", args[0]), err)
			}
			return o.formatFlags.PrintValueOrPage(s, policy, func(p *output.Page) {
				p.AddPairs(output.Pairs{
					{"Name", policy.Name}, {"Description", cmp.Or(policy.Description, noneText)}, {"CreateIndex", policy.CreateIndex}, {"ModifyIndex", policy.ModifyIndex},
				})
				if j := policy.JobACL; j != nil {
					p.AddSectionTitle("Associated Workload")
					p.AddPairs(output.Pairs{{"Namespace", j.Namespace}, {"JobID", j.JobID}, {"Group", j.Group}, {"Task", j.Task}})
				}
				p.AddSectionTitle("Rules")
				p.AddLine("")
				p.AddSanitizedLines(policy.Rules)
			})
		}), policyNames))
}

func newPolicyListCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.withFormat(o.newCommand("list [flags]", "List the ACL policies that the token may read", "", cli.NoArgs,
		func(ctx context.Context, c *api.Client, _ []string) error {
			all, _, err := c.ACLPolicies().List(apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("list policies", err)
			}
			return o.formatFlags.PrintValueOrPage(s, all, func(p *output.Page) {
				t := output.NewTable("Name", "Description")
				for _, policy := range sortedBy(all, func(p *api.ACLPolicyListStub) string { return p.Name }) {
					t.AddRow(policy.Name, cmp.Or(policy.Description, noneText))
				}
				p.AddTableOrMessage(t, "No policies found")
			})
		}))
}

func newPolicySelfCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.withFormat(o.newCommand("self [flags]", "List the ACL policies of the token", "", cli.NoArgs,
		func(ctx context.Context, c *api.Client, _ []string) error {
			token, _, err := c.ACLTokens().Self(apiclient.QueryOptions(ctx, ""))
			if err == nil && token.Type == typeManagement {
				_, err := fmt.Fprintln(s.Out, "This is a management token. No individual policies are assigned.")
				return err
			}
			all, _, err := c.ACLPolicies().Self(apiclient.QueryOptions(ctx, "")) // a task has policies, and no token
			if err != nil {
				return apiclient.WrapErrorWithAdvice("list the policies of the token", err)
			}
			return o.formatFlags.PrintValueOrPage(s, all, func(p *output.Page) {
				t := output.NewTable("Name", "Job ID", "Group Name", "Task Name")
				for _, policy := range all {
					j := policy.JobACL
					if j == nil {
						j = &api.JobACL{JobID: unavailableText, Group: unavailableText, Task: unavailableText}
					}
					t.AddRow(policy.Name, cmp.Or(j.JobID, noneText), cmp.Or(j.Group, noneText), cmp.Or(j.Task, noneText))
				}
				p.AddTableOrMessage(t, "No policies found")
			})
		}))
}
