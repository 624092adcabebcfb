package acl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// NewCommand returns the command "acl" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("acl", "Manage ACL policies, roles and tokens",
		newBootstrapCommand(s),
		cli.NewGroupCommand("policy", "Manage ACL policies",
			newPolicyApplyCommand(s), newPolicyDeleteCommand(s), newPolicyInfoCommand(s), newPolicyListCommand(s), newPolicySelfCommand(s)),
		cli.NewGroupCommand("role", "Manage ACL roles",
			newRoleCreateCommand(s), newRoleDeleteCommand(s), newRoleInfoCommand(s), newRoleListCommand(s), newRoleUpdateCommand(s)),
		cli.NewGroupCommand("token", "Manage ACL tokens",
			newTokenCreateCommand(s), newTokenDeleteCommand(s), newTokenInfoCommand(s), newTokenListCommand(s), newTokenSelfCommand(s), newTokenUpdateCommand(s)),
		cli.NewUnsupportedCommand("auth-method", noLoginsReason),
		cli.NewUnsupportedCommand("binding-rule", noLoginsReason),
	)
}

const noLoginsReason = "nobody logs in here: create a token with nomad-lite acl token create"

const bootstrapHelp = `Create the first management token of an agent with acl { enabled = true }. FILE, or - for
standard input, has the secret of the token; without it the agent makes one. A second time is
refused, unless the file acl-bootstrap-reset in the agent's data directory has the index that
the refusal names.

Exit codes: 0, or 1 when it is refused.`

// options are the flags that several commands have.
type options struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
}

// newCommand returns a command with connection flags.
func (o *options) newCommand(use, short, long string, args cobra.PositionalArgs, run func(ctx context.Context, c *api.Client, args []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.clientFlags.Client()
			if err != nil {
				return err
			}
			return run(cmd.Context(), c, args)
		},
	}
	o.clientFlags.Register(cmd)
	return cmd
}

// withFormat adds the flags for the format of the output.
func (o *options) withFormat(cmd *cobra.Command) *cobra.Command {
	o.formatFlags.Register(cmd)
	return cmd
}

func newBootstrapCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.withFormat(o.newCommand("bootstrap [flags] [FILE]", "Create the first management token", bootstrapHelp, cli.RequireArgCount(0, 1, "at most one file with a secret"),
		func(ctx context.Context, c *api.Client, args []string) error {
			secret := ""
			if len(args) > 0 {
				text, err := s.ReadFileOrStdin(args[0])
				if err != nil {
					return fmt.Errorf("read the secret: %w", err)
				}
				secret = strings.TrimSpace(string(text))
			}
			t, _, err := c.ACLTokens().BootstrapOpts(secret, apiclient.WriteOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("bootstrap access control", err)
			}
			return o.printToken(s, t)
		}))
}

// printToken prints a token with its secret.
func (o *options) printToken(s *cli.Streams, t *api.ACLToken) error {
	if o.formatFlags.JSON && o.formatFlags.Template == "" { // in one line, as in Nomad
		text, err := json.Marshal(t)
		if err == nil {
			_, err = fmt.Fprintf(s.JSONOutput(), "%s\n", text)
		}
		return err
	}
	return o.formatFlags.PrintValueOrPage(s, t, func(p *output.Page) {
		pairs := output.Pairs{
			{"Accessor ID", t.AccessorID}, {"Secret ID", t.SecretID}, {"Name", t.Name}, {"Type", t.Type}, {"Global", t.Global},
			{"Create Time", t.CreateTime.UTC().String()}, {"Expiry Time", formatExpiry(t.ExpirationTime)},
			{"Create Index", t.CreateIndex}, {"Modify Index", t.ModifyIndex},
		}
		if t.Type == typeManagement {
			p.AddPairs(append(pairs, [2]any{"Policies", "n/a"}, [2]any{"Roles", "n/a"}))
			return
		}
		p.AddPairs(append(pairs, [2]any{"Policies", fmt.Sprint(t.Policies)}))
		p.AddSectionTitle("Roles")
		table := output.NewTable("ID", "Name")
		for _, r := range t.Roles {
			table.AddRow(r.ID, r.Name)
		}
		p.AddTableOrMessage(table, noneText)
	})
}

const (
	noneText        = "<none>"
	unavailableText = "<unavailable>"
	typeManagement  = "management"
	typeClient      = "client"
)

func formatExpiry(t *time.Time) string {
	if t == nil {
		return noneText
	}
	return t.UTC().String()
}

// completeArg completes the only argument with values from the agent.
func (o *options) completeArg(cmd *cobra.Command, list func(*api.Client, *api.QueryOptions) ([]string, error)) *cobra.Command {
	cmd.ValidArgsFunction = cli.CompleteArgsByPosition(func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return o.clientFlags.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) ([]string, error) {
			return list(c, apiclient.QueryOptions(ctx, ""))
		})
	})
	return cmd
}

func policyNames(c *api.Client, q *api.QueryOptions) (names []string, err error) {
	all, _, err := c.ACLPolicies().List(q)
	for _, p := range all {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.Description))
	}
	return names, err
}

func roleIDs(c *api.Client, q *api.QueryOptions) (ids []string, err error) {
	all, _, err := c.ACLRoles().List(q)
	for _, r := range all {
		ids = append(ids, cobra.CompletionWithDesc(r.ID, r.Name))
	}
	return ids, err
}

func tokenAccessors(c *api.Client, q *api.QueryOptions) (ids []string, err error) {
	all, _, err := c.ACLTokens().List(q)
	for _, t := range all {
		ids = append(ids, cobra.CompletionWithDesc(t.AccessorID, t.Name))
	}
	return ids, err
}

// sortedBy sorts objects by a text.
func sortedBy[T any](all []T, key func(T) string) []T {
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	return all
}
