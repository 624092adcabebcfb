package acl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

var oneRoleArg = cli.RequireArgCount(1, 1, "the ID of a role; 'nomad-lite acl role list' lists them")

var (
	errNoRoleName   = errors.New("ACL role name must be specified using the -name flag")
	errNoRolePolicy = errors.New("at least one policy name must be specified using the -policy flag")
)

// roleFlags describe a role.
type roleFlags struct {
	name, description string
	policies          []string
}

func (f *roleFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "name", "", "`name` of the role")
	cmd.Flags().StringVar(&f.description, "description", "", "`text` about it")
	cmd.Flags().StringArrayVar(&f.policies, "policy", nil, "`name` of a policy of the role; may be given several times")
}

// addPolicies adds the policies that a role lacks.
func (f *roleFlags) addPolicies(role *api.ACLRole) {
	for _, name := range f.policies {
		if !slices.ContainsFunc(role.Policies, func(l *api.ACLRolePolicyLink) bool { return l.Name == name }) {
			role.Policies = append(role.Policies, &api.ACLRolePolicyLink{Name: name})
		}
	}
}

func (o *options) printRole(s *cli.Streams, role *api.ACLRole) error {
	return o.formatFlags.PrintValueOrPage(s, role, func(p *output.Page) {
		p.AddPairs(output.Pairs{
			{"ID", role.ID}, {"Name", role.Name}, {"Description", cmp.Or(role.Description, noneText)}, {"Policies", joinPolicyLinks(role.Policies)},
			{"Create Index", role.CreateIndex}, {"Modify Index", role.ModifyIndex},
		})
	})
}

func joinPolicyLinks(links []*api.ACLRolePolicyLink) string {
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return strings.Join(names, ",")
}

func newRoleCreateCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	var f roleFlags
	cmd := o.withFormat(o.newCommand("create [flags]", "Create an ACL role", "", cli.NoArgs,
		func(ctx context.Context, c *api.Client, _ []string) error {
			switch {
			case f.name == "":
				return errNoRoleName
			case len(f.policies) == 0:
				return errNoRolePolicy
			}
			role := &api.ACLRole{Name: f.name, Description: f.description}
			f.addPolicies(role)
			role, _, err := c.ACLRoles().Create(role, apiclient.WriteOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("create role %q", f.name), err)
			}
			return o.printRole(s, role)
		}))
	f.register(cmd)
	return cmd
}

func newRoleDeleteCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.completeArg(o.newCommand("delete [flags] ID", "Delete an ACL role", "", oneRoleArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			if _, err := c.ACLRoles().Delete(args[0], apiclient.WriteOptions(ctx, "")); err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("delete role %q", args[0]), err)
			}
			p := output.NewPage(s)
			p.AddLine("ACL role %s successfully deleted", args[0])
			return output.PrintPage(s, p)
		}), roleIDs)
}

func newRoleInfoCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	var byName bool
	cmd := o.withFormat(o.completeArg(o.newCommand("info [flags] ID", "Show an ACL role", "", oneRoleArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			read := c.ACLRoles().Get
			if byName {
				read = c.ACLRoles().GetByName
			}
			role, _, err := read(args[0], apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read role %q", args[0]), err)
			}
			return o.printRole(s, role)
		}), roleIDs))
	cmd.Flags().BoolVar(&byName, "by-name", false, "the argument is the name of the role")
	return cmd
}

func newRoleListCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.withFormat(o.newCommand("list [flags]", "List the ACL roles that the token may read", "", cli.NoArgs,
		func(ctx context.Context, c *api.Client, _ []string) error {
			all, _, err := c.ACLRoles().List(apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("list roles", err)
			}
			return o.formatFlags.PrintValueOrPage(s, all, func(p *output.Page) {
				t := output.NewTable("ID", "Name", "Description", "Policies")
				for _, r := range all {
					t.AddRow(r.ID, r.Name, cmp.Or(r.Description, noneText), joinPolicyLinks(r.Policies))
				}
				p.AddTableOrMessage(t, "No ACL roles found")
			})
		}))
}

func newRoleUpdateCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	var f roleFlags
	var noMerge bool
	cmd := o.withFormat(o.completeArg(o.newCommand("update [flags] ID", "Update an ACL role", "", oneRoleArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			if f.name == "" && f.description == "" && len(f.policies) == 0 {
				return errors.New("nothing to update: set -name, -description or -policy")
			}
			role := &api.ACLRole{ID: args[0]}
			switch {
			case noMerge && f.name == "":
				return errNoRoleName
			case noMerge && len(f.policies) == 0:
				return errNoRolePolicy
			case !noMerge:
				var err error
				if role, _, err = c.ACLRoles().Get(args[0], apiclient.QueryOptions(ctx, "")); err != nil {
					return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read role %q", args[0]), err)
				}
			}
			role.Name, role.Description = cmp.Or(f.name, role.Name), cmp.Or(f.description, role.Description)
			f.addPolicies(role)
			role, _, err := c.ACLRoles().Update(role, apiclient.WriteOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("update role %q", args[0]), err)
			}
			return o.printRole(s, role)
		}), roleIDs))
	f.register(cmd)
	cmd.Flags().BoolVar(&noMerge, "no-merge", false, "replace the role, and do not keep what no flag sets")
	return cmd
}
