package acl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

var oneTokenArg = cli.RequireArgCount(1, 1, "the accessor ID of a token; 'nomad-lite acl token list' lists them")

const tokenCreateHelp = `Create an ACL token, and print it with its secret. With -accessor, FILE, or - for standard
input, has the secret of the token.

Exit codes: 0, or 1 when it is refused.`

// tokenFlags describe a token.
type tokenFlags struct {
	name, tokenType              string
	global                       bool
	policies, roleNames, roleIDs []string
}

func (f *tokenFlags) register(cmd *cobra.Command, defaultType string) {
	cmd.Flags().StringVar(&f.name, "name", "", "`name` of the token")
	cmd.Flags().StringVar(&f.tokenType, "type", defaultType, "`type` of the token: client or management")
	cmd.Flags().BoolVar(&f.global, "global", false, "mark the token as global")
	cmd.Flags().StringArrayVar(&f.policies, "policy", nil, "`name` of a policy of the token; may be given several times")
	cmd.Flags().StringArrayVar(&f.roleNames, "role-name", nil, "`name` of a role of the token; may be given several times")
	cmd.Flags().StringArrayVar(&f.roleIDs, "role-id", nil, "`ID` of a role of the token; may be given several times")
}

func (f *tokenFlags) roles() (links []*api.ACLTokenRoleLink) {
	for _, name := range f.roleNames {
		links = append(links, &api.ACLTokenRoleLink{Name: name})
	}
	for _, id := range f.roleIDs {
		links = append(links, &api.ACLTokenRoleLink{ID: id})
	}
	return links
}

func newTokenCreateCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	var f tokenFlags
	var ttl, accessor string
	cmd := o.withFormat(o.newCommand("create [flags] [FILE]", "Create an ACL token", tokenCreateHelp, cli.RequireArgCount(0, 1, "at most one file with a secret"),
		func(ctx context.Context, c *api.Client, args []string) error {
			t := &api.ACLToken{Name: f.name, Type: f.tokenType, Policies: f.policies, Roles: f.roles(), Global: f.global, AccessorID: accessor}
			switch {
			case accessor != "" && len(args) == 0:
				return errors.New("-accessor needs a file with the secret of the token: name the file, or - for standard input")
			case accessor == "" && len(args) > 0:
				return errors.New("a file with a secret needs the accessor ID of the token: set -accessor")
			case accessor != "" && f.tokenType == typeManagement:
				return errors.New("the accessor ID of a management token cannot be chosen: leave out -accessor")
			case accessor != "":
				secret, err := s.ReadFileOrStdin(args[0])
				if err != nil {
					return fmt.Errorf("read the secret: %w", err)
				}
				t.SecretID = strings.TrimSpace(string(secret))
			}
			if ttl != "" {
				var err error
				if t.ExpirationTTL, err = time.ParseDuration(ttl); err != nil {
					return fmt.Errorf("-ttl: %w", err)
				}
			}
			for _, name := range f.policies {
				if _, _, err := c.ACLPolicies().Info(name, apiclient.QueryOptions(ctx, "")); apiclient.IsNotFound(err) {
					p := output.NewPage(s)
					p.AddLine("Warning: there is no policy %q yet", name)
					fmt.Fprint(s.Err, p.Text.String())
				}
			}
			create := c.ACLTokens().Create
			if accessor != "" {
				create = c.ACLTokens().Upload
			}
			t, _, err := create(t, apiclient.WriteOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("create a token", err)
			}
			return o.printToken(s, t)
		}))
	f.register(cmd, typeClient)
	cmd.Flags().StringVar(&ttl, "ttl", "", "`duration` after which the token expires, such as 8h")
	cmd.Flags().StringVar(&accessor, "accessor", "", "accessor `ID` of the token; FILE has its secret")
	return cmd
}

func newTokenDeleteCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.completeArg(o.newCommand("delete [flags] ACCESSOR", "Delete an ACL token", "", oneTokenArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			if _, err := c.ACLTokens().Delete(args[0], apiclient.WriteOptions(ctx, "")); err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("delete token %q", args[0]), err)
			}
			p := output.NewPage(s)
			p.AddLine("Token %s successfully deleted", args[0])
			return output.PrintPage(s, p)
		}), tokenAccessors)
}

func newTokenInfoCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.withFormat(o.completeArg(o.newCommand("info [flags] ACCESSOR", "Show an ACL token with its secret", "", oneTokenArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			t, _, err := c.ACLTokens().Info(args[0], apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read token %q", args[0]), err)
			}
			return o.printToken(s, t)
		}), tokenAccessors))
}

func newTokenListCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	return o.withFormat(o.newCommand("list [flags]", "List ACL tokens", "", cli.NoArgs,
		func(ctx context.Context, c *api.Client, _ []string) error {
			all, _, err := c.ACLTokens().List(apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("list tokens", err)
			}
			return o.formatFlags.PrintValueOrPage(s, all, func(p *output.Page) {
				table := output.NewTable("Name", "Type", "Global", "Accessor ID", "Expired")
				for _, t := range all {
					table.AddRow(t.Name, t.Type, t.Global, t.AccessorID, t.ExpirationTime != nil && t.ExpirationTime.Before(time.Now()))
				}
				p.AddTableOrMessage(table, "No tokens found")
			})
		}))
}

// errNoToken has the text of Nomad.
//
//lint:ignore ST1005 the text is Nomad's
var errNoToken = errors.New("No token present in the environment or set via the CLI flag")

func newTokenSelfCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	cmd := o.withFormat(o.newCommand("self [flags]", "Show the ACL token in use, with its secret", "", cli.NoArgs,
		func(ctx context.Context, c *api.Client, _ []string) error {
			if o.clientFlags.ClientConfig().SecretID == "" {
				return errNoToken
			}
			t, _, err := c.ACLTokens().Self(apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("read the token in use", err)
			}
			return o.printToken(s, t)
		}))
	return cmd
}

func newTokenUpdateCommand(s *cli.Streams) *cobra.Command {
	o := new(options)
	var f tokenFlags
	var cmd *cobra.Command
	cmd = o.withFormat(o.completeArg(o.newCommand("update [flags] ACCESSOR", "Update an ACL token", "", oneTokenArg,
		func(ctx context.Context, c *api.Client, args []string) error {
			t, _, err := c.ACLTokens().Info(args[0], apiclient.QueryOptions(ctx, ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read token %q", args[0]), err)
			}
			for flag, set := range map[string]func(){
				"name": func() { t.Name = f.name }, "type": func() { t.Type = f.tokenType }, "global": func() { t.Global = f.global },
				"policy": func() { t.Policies = f.policies },
			} {
				if cmd.Flags().Changed(flag) {
					set()
				}
			}
			if links := f.roles(); links != nil {
				t.Roles = links
			}
			if t, _, err = c.ACLTokens().Update(t, apiclient.WriteOptions(ctx, "")); err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("update token %q", args[0]), err)
			}
			return o.printToken(s, t)
		}), tokenAccessors))
	f.register(cmd, "")
	return cmd
}
