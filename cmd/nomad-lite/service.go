package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const serviceListHelp = `List the services that running allocations have registered (those with provider
"nomad").`

const serviceInfoHelp = `Show where the instances of a service are.

Exit codes: 0, or 1 when there is no such service.`

const serviceInfoExamples = `  nomad-lite service info web
  nomad-lite service info -filter 'Tags contains "canary"' web
  nomad-lite service info -t '{{range .}}{{println .Address .Port}}{{end}}' web`

const serviceDeleteHelp = `Delete a registration that was left behind. A service whose allocation runs comes
back.`

type serviceOptions struct {
	client  clientFlags
	format  formatFlags
	page    pageFlags
	verbose bool
}

func newServiceCommand(s *streams) *cobra.Command {
	return group("service", "Look at registered services",
		newServiceListCommand(s), newServiceInfoCommand(s), newServiceDeleteCommand(s))
}

func newServiceListCommand(s *streams) *cobra.Command {
	var o serviceOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List services",
		Long:  serviceListHelp,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listServices(cmd.Context(), o, s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	return cmd
}

func newServiceInfoCommand(s *streams) *cobra.Command {
	var o serviceOptions
	cmd := &cobra.Command{
		Use:     "info [flags] SERVICE",
		Short:   "Show the instances of a service",
		Long:    serviceInfoHelp,
		Example: serviceInfoExamples,
		Args:    argCount(1, 1, "the name of a service; 'nomad-lite service list' lists them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return serviceInfo(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: firstArg(o.client.completeServices),
	}
	o.client.register(cmd)
	o.format.register(cmd)
	o.page.register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show all that is known of each")
	return cmd
}

func newServiceDeleteCommand(s *streams) *cobra.Command {
	var o serviceOptions
	cmd := &cobra.Command{
		Use:   "delete [flags] SERVICE ID",
		Short: "Delete a registration",
		Long:  serviceDeleteHelp,
		Args:  argCount(2, 2, "the name of a service and the id of a registration; 'nomad-lite service info -verbose NAME' shows the ids"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			if _, err := c.Services().Delete(args[0], args[1], write(cmd.Context(), "")); err != nil {
				return failed(fmt.Sprintf("delete registration %q of service %q", args[1], args[0]), err)
			}
			_, err = fmt.Fprintln(s.out, "Successfully deleted service registration")
			return err
		},
	}
	o.client.register(cmd)
	return cmd
}

// completeServices suggests names.
func (f *clientFlags) completeServices(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return f.suggest(cmd.Context(), func(ctx context.Context, c *api.Client) (names []string, err error) {
		all, _, err := c.Services().List(query(ctx, ""))
		for _, namespace := range all {
			for _, service := range namespace.Services {
				names = append(names, service.ServiceName)
			}
		}
		return names, err
	})
}

func listServices(ctx context.Context, o serviceOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	all, _, err := c.Services().List(query(ctx, ""))
	if err != nil {
		return failed("list services", err)
	}
	if o.format.wanted() {
		return o.format.print(s, all)
	}
	several := len(all) > 1 || o.client.namespace == "*"
	head := []string{"Service Name", "Tags"}
	if several {
		head = append(head, "Namespace")
	}
	t := newTable(head...)
	for _, namespace := range all {
		for _, service := range namespace.Services {
			row := []any{service.ServiceName, "[" + strings.Join(slices.Sorted(slices.Values(service.Tags)), ",") + "]"}
			if several {
				row = append(row, namespace.Namespace)
			}
			t.row(row...)
		}
	}
	p := s.page()
	p.tableOr(t, "No service registrations found")
	return s.show(p)
}

func serviceInfo(ctx context.Context, o serviceOptions, name string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	instances, meta, err := c.Services().Get(name, o.page.query(ctx))
	if err != nil {
		return failed(fmt.Sprintf("read service %q", name), err)
	}
	if len(instances) == 0 && o.page.filter == "" {
		return fmt.Errorf("no service %q is registered\nSee those that are: nomad-lite service list", name)
	}
	if o.format.wanted() {
		return o.format.print(s, instances)
	}
	p := s.page()
	if len(instances) == 0 {
		p.line("No registration matches the filter")
		return s.show(p)
	}
	if !o.verbose {
		p.table(registrations(instances, false))
		p.more(meta)
		return s.show(p)
	}
	for i, r := range instances {
		if i > 0 {
			p.line("")
		}
		p.pairs(pairs{
			{"ID", r.ID},
			{"Service Name", r.ServiceName},
			{"Namespace", r.Namespace},
			{"Job ID", r.JobID},
			{"Alloc ID", r.AllocID},
			{"Node ID", r.NodeID},
			{"Datacenter", r.Datacenter},
			{"Address", hostPort(r)},
			{"Tags", "[" + strings.Join(r.Tags, ",") + "]"},
		})
	}
	p.more(meta)
	return s.show(p)
}

// registrations returns a table with one line per service instance.
func registrations(all []*api.ServiceRegistration, verbose bool) *table {
	t := newTable("Service", "Job ID", "Address", "Tags", "Node ID", "Alloc ID")
	for _, r := range all {
		t.row(r.ServiceName, r.JobID, hostPort(r), "["+strings.Join(r.Tags, ",")+"]", shortID(r.NodeID, verbose), shortID(r.AllocID, verbose))
	}
	return t
}

func hostPort(r *api.ServiceRegistration) string {
	if r.Port == 0 {
		return r.Address
	}
	if strings.Contains(r.Address, ":") {
		return fmt.Sprintf("[%s]:%d", r.Address, r.Port)
	}
	return fmt.Sprintf("%s:%d", r.Address, r.Port)
}
