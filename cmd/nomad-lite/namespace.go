package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsimple"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const namespaceApplyHelp = `Create a namespace, or change it. NAME may be a file in HCL, or JSON with -json, or -
for standard input, that describes it.

Exit codes: 0, or 1 when it is refused.`

const namespaceApplyExamples = `  nomad-lite namespace apply -description 'what we try out' try
  nomad-lite namespace apply try.hcl`

const namespaceDeleteHelp = `Delete a namespace that has no jobs and no variables any more.

Exit codes: 0, or 1 when it is refused.`

func newNamespaceCommand(s *streams) *cobra.Command {
	return group("namespace", "Keep jobs apart from each other",
		newNamespaceListCommand(s),
		newNamespaceStatusCommand(s),
		newNamespaceApplyCommand(s),
		newNamespaceDeleteCommand(s),
	)
}

type namespaceOptions struct {
	client      clientFlags
	format      formatFlags
	description string
	meta        []string
	quota       string
	json        bool
}

func newNamespaceListCommand(s *streams) *cobra.Command {
	var o namespaceOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List namespaces",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			all, _, err := c.Namespaces().List(query(cmd.Context(), ""))
			if err != nil {
				return failed("list namespaces", err)
			}
			slices.SortFunc(all, func(a, b *api.Namespace) int { return cmp.Compare(a.Name, b.Name) })
			return o.format.show(s, all, func(p *page) {
				t := newTable("Name", "Description")
				for _, n := range all {
					t.row(n.Name, n.Description)
				}
				p.table(t)
			})
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	return cmd
}

var oneNamespace = argCount(1, 1, "the name of a namespace; 'nomad-lite namespace list' lists them")

func newNamespaceStatusCommand(s *streams) *cobra.Command {
	var o namespaceOptions
	cmd := &cobra.Command{
		Use:     "status [flags] NAME",
		Aliases: []string{"inspect"},
		Short:   "Show a namespace",
		Args:    oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			return showNamespace(cmd.Context(), o, args[0], cmd.CalledAs() == "inspect", s)
		},
		ValidArgsFunction: firstArg(o.client.completeNamespaces),
	}
	o.client.register(cmd)
	o.format.register(cmd)
	return cmd
}

func showNamespace(ctx context.Context, o namespaceOptions, name string, inspect bool, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	n, err := findNamespace(ctx, c, name)
	if err != nil {
		return err
	}
	if o.format.wanted() || inspect {
		return o.format.print(s, n)
	}
	p := s.page()
	p.pairs(pairs{{"Name", n.Name}, {"Description", n.Description}})
	if n.Quota != "" {
		p.pairs(pairs{{"Quota", n.Quota}})
	}
	if len(n.Meta) > 0 {
		p.section("Metadata")
		p.pairs(sortedPairs(n.Meta))
	}
	if caps := n.Capabilities; caps != nil {
		p.section("Capabilities")
		p.pairs(pairs{
			{"Enabled Task Drivers", strings.Join(caps.EnabledTaskDrivers, ", ")},
			{"Disabled Task Drivers", strings.Join(caps.DisabledTaskDrivers, ", ")},
			{"Enabled Network Modes", strings.Join(caps.EnabledNetworkModes, ", ")},
			{"Disabled Network Modes", strings.Join(caps.DisabledNetworkModes, ", ")},
		})
	}
	return s.show(p)
}

// findNamespace returns the namespace with this name, or the only one with this prefix.
func findNamespace(ctx context.Context, c *api.Client, name string) (*api.Namespace, error) {
	all, _, err := c.Namespaces().PrefixList(name, query(ctx, ""))
	if err != nil {
		return nil, failed(fmt.Sprintf("look for namespace %q", name), err)
	}
	if i := slices.IndexFunc(all, func(n *api.Namespace) bool { return n.Name == name }); i >= 0 {
		return all[i], nil
	}
	switch len(all) {
	case 0:
		return nil, fmt.Errorf("there is no namespace %q\nSee those that there are: nomad-lite namespace list", name)
	case 1:
		return all[0], nil
	}
	t := newTable("Name", "Description")
	for _, n := range all {
		t.row(n.Name, n.Description)
	}
	return nil, ambiguous("namespace", name, t)
}

func newNamespaceApplyCommand(s *streams) *cobra.Command {
	var o namespaceOptions
	cmd := &cobra.Command{
		Use:     "apply [flags] NAME|FILE",
		Short:   "Create a namespace, or change it",
		Long:    namespaceApplyHelp,
		Example: namespaceApplyExamples,
		Args:    argCount(1, 1, "the name of a namespace, or a file that describes one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return applyNamespace(cmd, o, args[0], s)
		},
	}
	o.client.register(cmd)
	cmd.Flags().StringVar(&o.description, "description", "", "`text` about it")
	cmd.Flags().StringArrayVar(&o.meta, "meta", nil, "`key=value` to keep with it; may be given several times")
	cmd.Flags().StringVar(&o.quota, "quota", "", "`quota` to apply (Nomad Enterprise)")
	cmd.Flags().BoolVar(&o.json, "json", false, "the file is JSON")
	return cmd
}

func applyNamespace(cmd *cobra.Command, o namespaceOptions, name string, s *streams) error {
	ctx := cmd.Context()
	c, err := o.client.client()
	if err != nil {
		return err
	}
	n, err := o.described(name, s.in)
	if err != nil {
		return err
	}
	if n == nil {
		// Fields without a flag keep their values.
		n, _, err = c.Namespaces().Info(name, query(ctx, ""))
		if unknown(err) {
			n, err = &api.Namespace{Name: name}, nil
		}
		if err != nil {
			return failed(fmt.Sprintf("read namespace %q", name), err)
		}
	}
	if cmd.Flags().Changed("description") {
		n.Description = o.description
	}
	if cmd.Flags().Changed("quota") {
		n.Quota = o.quota
	}
	for _, pair := range o.meta {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return usageError(cmd, fmt.Errorf("-meta %q: want key=value", pair))
		}
		if n.Meta == nil {
			n.Meta = map[string]string{}
		}
		n.Meta[key] = value
	}
	if _, err := c.Namespaces().Register(n, write(ctx, "")); err != nil {
		return failed(fmt.Sprintf("apply namespace %q", n.Name), err)
	}
	_, err = fmt.Fprintf(s.out, "Successfully applied namespace %q!\n", n.Name)
	return err
}

// described returns the namespace that a file describes, nil if the argument is not a file.
func (o namespaceOptions) described(name string, stdin io.Reader) (*api.Namespace, error) {
	var text []byte
	var err error
	if name == "-" {
		text, err = io.ReadAll(stdin)
	} else if info, statErr := os.Stat(name); statErr == nil && info.Mode().IsRegular() {
		text, err = os.ReadFile(name)
	} else if strings.ContainsAny(name, "./") {
		return nil, fmt.Errorf("there is no file %s, and a namespace cannot be called that", name)
	}
	if text == nil || err != nil {
		return nil, err
	}
	n := new(api.Namespace)
	if o.json || strings.HasSuffix(name, ".json") {
		if err := json.Unmarshal(text, n); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	} else {
		var spec namespaceSpec
		if err := hclsimple.Decode("namespace.hcl", text, nil, &spec); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		*n = spec.namespace()
	}
	if n.Name == "" {
		return nil, fmt.Errorf("%s does not name the namespace: it needs name = \"…\"", name)
	}
	return n, nil
}

// namespaceSpec is the content of a namespace file.
type namespaceSpec struct {
	Name        string `hcl:"name"`
	Description string `hcl:"description,optional"`
	Quota       string `hcl:"quota,optional"`
	Meta        *struct {
		Values map[string]string `hcl:",remain"`
	} `hcl:"meta,block"`
	Capabilities *struct {
		EnabledTaskDrivers   []string `hcl:"enabled_task_drivers,optional"`
		DisabledTaskDrivers  []string `hcl:"disabled_task_drivers,optional"`
		EnabledNetworkModes  []string `hcl:"enabled_network_modes,optional"`
		DisabledNetworkModes []string `hcl:"disabled_network_modes,optional"`
	} `hcl:"capabilities,block"`
}

func (spec namespaceSpec) namespace() api.Namespace {
	n := api.Namespace{Name: spec.Name, Description: spec.Description, Quota: spec.Quota}
	if spec.Meta != nil {
		n.Meta = spec.Meta.Values
	}
	if c := spec.Capabilities; c != nil {
		n.Capabilities = &api.NamespaceCapabilities{
			EnabledTaskDrivers:   c.EnabledTaskDrivers,
			DisabledTaskDrivers:  c.DisabledTaskDrivers,
			EnabledNetworkModes:  c.EnabledNetworkModes,
			DisabledNetworkModes: c.DisabledNetworkModes,
		}
	}
	return n
}

func newNamespaceDeleteCommand(s *streams) *cobra.Command {
	var o namespaceOptions
	cmd := &cobra.Command{
		Use:   "delete [flags] NAME",
		Short: "Delete a namespace",
		Long:  namespaceDeleteHelp,
		Args:  oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			if _, err := c.Namespaces().Delete(args[0], write(cmd.Context(), "")); err != nil {
				return failed(fmt.Sprintf("delete namespace %q", args[0]), err)
			}
			_, err = fmt.Fprintf(s.out, "Successfully deleted namespace %q!\n", args[0])
			return err
		},
		ValidArgsFunction: firstArg(o.client.completeNamespaces),
	}
	o.client.register(cmd)
	return cmd
}
