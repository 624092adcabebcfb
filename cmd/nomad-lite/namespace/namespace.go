package namespace

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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const applyHelp = `Create or update a namespace. NAME can be a file in HCL, or JSON with -json, or -
for standard input, that describes it.

Exit codes: 0, or 1 when it is refused.`

const applyExamples = `  nomad-lite namespace apply -description 'what we try out' try
  nomad-lite namespace apply try.hcl`

const deleteHelp = `Delete a namespace that has no jobs and no variables.

Exit codes: 0, or 1 when it is refused.`

// NewCommand returns the command "namespace" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("namespace", "Manage namespaces",
		newListCommand(s),
		newStatusCommand(s),
		newApplyCommand(s),
		newDeleteCommand(s),
	)
}

type options struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	description string
	metaPairs   []string
	quota       string
	fileIsJSON  bool
}

func newListCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List namespaces",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.clientFlags.Client()
			if err != nil {
				return err
			}
			all, _, err := c.Namespaces().List(apiclient.QueryOptions(cmd.Context(), ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("list namespaces", err)
			}
			slices.SortFunc(all, func(a, b *api.Namespace) int { return cmp.Compare(a.Name, b.Name) })
			return o.formatFlags.PrintValueOrPage(s, all, func(p *output.Page) {
				t := output.NewTable("Name", "Description")
				for _, n := range all {
					t.AddRow(n.Name, n.Description)
				}
				p.AddTable(t)
			})
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	return cmd
}

var oneNamespaceArg = cli.RequireArgCount(1, 1, "the name of a namespace; 'nomad-lite namespace list' lists them")

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:     "status [flags] NAME",
		Aliases: []string{"inspect"},
		Short:   "Show a namespace",
		Args:    oneNamespaceArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return showNamespace(cmd.Context(), o, args[0], cmd.CalledAs() == "inspect", s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteNamespaces),
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	return cmd
}

func showNamespace(ctx context.Context, o options, nameOrPrefix string, asJSON bool, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	n, err := findNamespace(ctx, c, nameOrPrefix)
	if err != nil {
		return err
	}
	if o.formatFlags.IsSet() || asJSON {
		return o.formatFlags.Print(s, n)
	}
	p := output.NewPage(s)
	capabilities := pointer.Value(n.Capabilities)
	p.AddPairs(output.Pairs{
		{"Name", n.Name},
		{"Description", n.Description},
		{"Quota", n.Quota},
		{"Enabled Drivers", cmp.Or(strings.Join(capabilities.EnabledTaskDrivers, ","), "*")},
		{"Disabled Drivers", strings.Join(capabilities.DisabledTaskDrivers, ",")},
		{"Enabled Network Modes", cmp.Or(strings.Join(capabilities.EnabledNetworkModes, ","), "*")},
		{"Disabled Network Modes", strings.Join(capabilities.DisabledNetworkModes, ",")},
	})
	if len(n.Meta) > 0 {
		p.AddSectionTitle("Metadata")
		p.AddPairs(output.SortedPairs(n.Meta))
	}
	return output.PrintPage(s, p)
}

// findNamespace returns the namespace with this name, or the only one with this prefix.
func findNamespace(ctx context.Context, c *api.Client, nameOrPrefix string) (*api.Namespace, error) {
	all, _, err := c.Namespaces().PrefixList(nameOrPrefix, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("look for namespace %q", nameOrPrefix), err)
	}
	if i := slices.IndexFunc(all, func(n *api.Namespace) bool { return n.Name == nameOrPrefix }); i >= 0 {
		return all[i], nil
	}
	switch len(all) {
	case 0:
		//lint:ignore ST1005 the text is Nomad's
		return nil, fmt.Errorf("Namespace %q matched no namespaces\nList the namespaces: nomad-lite namespace list", nameOrPrefix)
	case 1:
		return all[0], nil
	}
	t := output.NewTable("Name", "Description")
	for _, n := range all {
		t.AddRow(n.Name, n.Description)
	}
	return nil, apiclient.NewAmbiguousPrefixError("Prefix matched multiple namespaces", t)
}

func newApplyCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:     "apply [flags] NAME|FILE",
		Short:   "Create or update a namespace",
		Long:    applyHelp,
		Example: applyExamples,
		Args:    cli.RequireArgCount(1, 1, "the name of a namespace, or a file that describes one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return applyNamespace(cmd, o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.description, "description", "", "`text` about it")
	cmd.Flags().StringArrayVar(&o.metaPairs, "meta", nil, "`key=value` to keep with it; may be given several times")
	cmd.Flags().StringVar(&o.quota, "quota", "", "`quota` to apply (Nomad Enterprise)")
	cmd.Flags().BoolVar(&o.fileIsJSON, "json", false, "the file is JSON")
	return cmd
}

func applyNamespace(cmd *cobra.Command, o options, nameOrFile string, s *cli.Streams) error {
	ctx := cmd.Context()
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	n, err := o.readSpecIfFile(nameOrFile, s.In)
	if err != nil {
		return err
	}
	if n == nil {
		// Fields of an existing namespace keep their values if no flag sets them.
		n, _, err = c.Namespaces().Info(nameOrFile, apiclient.QueryOptions(ctx, ""))
		if apiclient.IsNotFound(err) {
			n, err = &api.Namespace{Name: nameOrFile}, nil
		}
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read namespace %q", nameOrFile), err)
		}
	}
	if cmd.Flags().Changed("description") {
		n.Description = o.description
	}
	if cmd.Flags().Changed("quota") {
		n.Quota = o.quota
	}
	for _, pair := range o.metaPairs {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return cli.UsageError(cmd, fmt.Errorf("-meta %q: want key=value", pair))
		}
		if n.Meta == nil {
			n.Meta = map[string]string{}
		}
		n.Meta[key] = value
	}
	if _, err := c.Namespaces().Register(n, apiclient.WriteOptions(ctx, "")); err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("apply namespace %q", n.Name), err)
	}
	_, err = fmt.Fprintf(s.Out, "Successfully applied namespace %q!\n", n.Name)
	return err
}

// readSpecIfFile returns the namespace that a file or, for "-", standard input describes. It returns nil if nameOrFile
// is the name of a namespace and not of a file.
func (o options) readSpecIfFile(nameOrFile string, stdin io.Reader) (*api.Namespace, error) {
	var specText []byte
	var err error
	if nameOrFile == "-" {
		specText, err = io.ReadAll(stdin)
	} else if info, statErr := os.Stat(nameOrFile); statErr == nil && info.Mode().IsRegular() {
		specText, err = os.ReadFile(nameOrFile)
	} else if strings.ContainsAny(nameOrFile, "./") {
		return nil, fmt.Errorf("there is no file %s, and a namespace cannot be called that", nameOrFile)
	}
	if specText == nil || err != nil {
		return nil, err
	}
	n := new(api.Namespace)
	if o.fileIsJSON || strings.HasSuffix(nameOrFile, ".json") {
		if err := json.Unmarshal(specText, n); err != nil {
			return nil, fmt.Errorf("read %s: %w", nameOrFile, err)
		}
	} else {
		var spec namespaceSpec
		if err := hclsimple.Decode("namespace.hcl", specText, nil, &spec); err != nil {
			return nil, fmt.Errorf("read %s: %w", nameOrFile, err)
		}
		*n = spec.toNamespace()
	}
	if n.Name == "" {
		return nil, fmt.Errorf("%s does not name the namespace: it needs name = \"…\"", nameOrFile)
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
	// An agent refuses the next three blocks, and the servers of a cluster need a licence for them.
	NodePoolConfig *poolOrClusterSpec `hcl:"node_pool_config,block"`
	Vault          *poolOrClusterSpec `hcl:"vault,block"`
	Consul         *poolOrClusterSpec `hcl:"consul,block"`
}

// poolOrClusterSpec is a block about node pools, or about clusters of Vault or Consul.
type poolOrClusterSpec struct {
	Default string   `hcl:"default,optional"`
	Allowed []string `hcl:"allowed,optional"`
	Denied  []string `hcl:"denied,optional"`
}

func (s namespaceSpec) toNamespace() api.Namespace {
	n := api.Namespace{Name: s.Name, Description: s.Description, Quota: s.Quota}
	if s.Meta != nil {
		n.Meta = s.Meta.Values
	}
	if c := s.Capabilities; c != nil {
		n.Capabilities = &api.NamespaceCapabilities{
			EnabledTaskDrivers:   c.EnabledTaskDrivers,
			DisabledTaskDrivers:  c.DisabledTaskDrivers,
			EnabledNetworkModes:  c.EnabledNetworkModes,
			DisabledNetworkModes: c.DisabledNetworkModes,
		}
	}
	n.NodePoolConfiguration = (*api.NamespaceNodePoolConfiguration)(s.NodePoolConfig)
	n.VaultConfiguration = (*api.NamespaceVaultConfiguration)(s.Vault)
	n.ConsulConfiguration = (*api.NamespaceConsulConfiguration)(s.Consul)
	return n
}

func newDeleteCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "delete [flags] NAME",
		Short: "Delete a namespace",
		Long:  deleteHelp,
		Args:  oneNamespaceArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.clientFlags.Client()
			if err != nil {
				return err
			}
			if _, err := c.Namespaces().Delete(args[0], apiclient.WriteOptions(cmd.Context(), "")); err != nil {
				return apiclient.WrapErrorWithAdvice(fmt.Sprintf("delete namespace %q", args[0]), err)
			}
			_, err = fmt.Fprintf(s.Out, "Successfully deleted namespace %q!\n", args[0])
			return err
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteNamespaces),
	}
	o.clientFlags.Register(cmd)
	return cmd
}
