package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
)

const listHelp = `List the services that running allocations have registered (those with provider
"nomad").`

const infoHelp = `Show the addresses of the instances of a service.

Exit codes: 0, or 1 when there is no such service.`

const infoExamples = `  nomad-lite service info web
  nomad-lite service info -filter 'Tags contains "canary"' web
  nomad-lite service info -t '{{range .}}{{println .Address .Port}}{{end}}' web`

const deleteHelp = `Delete a stale service registration. The agent registers the service again if its
allocation runs.`

type options struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	pageFlags   apiclient.PageFlags
	verbose     bool
}

// NewCommand returns the command "service" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("service", "List services and delete registrations",
		newListCommand(s), newInfoCommand(s), newDeleteCommand(s))
}

func newListCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List services",
		Long:  listHelp,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listServices(cmd.Context(), o, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	return cmd
}

func newInfoCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:     "info [flags] SERVICE",
		Short:   "Show the instances of a service",
		Long:    infoHelp,
		Example: infoExamples,
		Args:    cli.RequireArgCount(1, 1, "the name of a service; 'nomad-lite service list' lists them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showServiceInstances(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(completeServices(&o.clientFlags)),
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	o.pageFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show all that is known of each")
	return cmd
}

func newDeleteCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "delete [flags] SERVICE ID",
		Short: "Delete a service registration",
		Long:  deleteHelp,
		Args:  cli.RequireArgCount(2, 2, "the name of a service and the id of a registration; 'nomad-lite service info -verbose NAME' shows the ids"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.clientFlags.Client()
			if err != nil {
				return err
			}
			if _, err := c.Services().Delete(args[0], args[1], apiclient.WriteOptions(cmd.Context(), "")); err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("delete registration %q of service %q", args[1], args[0]), err)
			}
			_, err = fmt.Fprintln(s.Out, "Successfully deleted service registration")
			return err
		},
	}
	o.clientFlags.Register(cmd)
	return cmd
}

// completeServices suggests names of services.
func completeServices(f *apiclient.Flags) cli.Completer {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) (names []string, err error) {
			all, _, err := c.Services().List(apiclient.QueryOptions(ctx, ""))
			for _, namespace := range all {
				for _, service := range namespace.Services {
					names = append(names, service.ServiceName)
				}
			}
			return names, err
		})
	}
}

func listServices(ctx context.Context, o options, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	all, _, err := c.Services().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list services", err)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, all)
	}
	several := len(all) > 1 || o.clientFlags.Namespace == "*"
	head := []string{"Service Name", "Tags"}
	if several {
		head = append(head, "Namespace")
	}
	t := output.NewTable(head...)
	for _, namespace := range all {
		for _, service := range namespace.Services {
			row := []any{service.ServiceName, "[" + strings.Join(slices.Sorted(slices.Values(service.Tags)), ",") + "]"}
			if several {
				row = append(row, namespace.Namespace)
			}
			t.AddRow(row...)
		}
	}
	p := output.NewPage(s)
	p.AddTableOrMessage(t, "No service registrations found")
	return output.PrintPage(s, p)
}

func showServiceInstances(ctx context.Context, o options, name string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	instances, meta, err := c.Services().Get(name, o.pageFlags.QueryOptions(ctx))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read service %q", name), err)
	}
	if len(instances) == 0 && o.pageFlags.Filter == "" {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("No service registrations with prefix %q found\nList the services: nomad-lite service list", name)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, instances)
	}
	p := output.NewPage(s)
	if len(instances) == 0 {
		p.AddLine("No registration matches the filter")
		return output.PrintPage(s, p)
	}
	if !o.verbose {
		p.AddTable(tables.NewServiceTable(instances, false))
		p.AddNextPageHint(meta)
		return output.PrintPage(s, p)
	}
	for i, r := range instances {
		if i > 0 {
			p.AddLine("")
		}
		p.AddPairs(output.Pairs{
			{"ID", r.ID},
			{"Service Name", r.ServiceName},
			{"Namespace", r.Namespace},
			{"Job ID", r.JobID},
			{"Alloc ID", r.AllocID},
			{"Node ID", r.NodeID},
			{"Datacenter", r.Datacenter},
			{"Address", tables.ServiceAddress(r)},
			{"Tags", "[" + strings.Join(r.Tags, ",") + "]"},
		})
	}
	p.AddNextPageHint(meta)
	return output.PrintPage(s, p)
}
