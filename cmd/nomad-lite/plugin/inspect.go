package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
)

const inspectHelp = `Start a plugin, and show what it reports about itself: its type, name and version,
the capabilities of a driver, the hook points of a hook or the devices of a device
plugin, and the schemas of its plugin block and of the config block of a task (for a
hook: of lite_hook_NAME in meta).

The argument is the name of a driver, hook or device plugin, builtin or in the plugin
directory; or the path of a file, with a slash: ./NAME for a file in this directory.

In a schema each argument has its type in place of a value. With -json a schema has
the form of the messages in hclspec/specpb/hcl_spec.proto.

A plugin that needs a configuration gets it from the plugin block in the file of
-config. Without a block, only the schema of the plugin block is shown, and on
standard error why the plugin needs one.

Exit codes: 0, or 1 when the plugin could not be started, or has rejected the
configuration of its plugin block.`

func newInspectCommand(s *cli.Streams) *cobra.Command {
	var plugins localplugins.Flags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect [flags] NAME|FILE",
		Short: "Show the capabilities and schemas of a plugin",
		Long:  inspectHelp,
		Example: `  nomad-lite plugin inspect raw_exec
  nomad-lite plugin inspect -plugin-dir /opt/nomad-lite/plugins podman
  nomad-lite plugin inspect ./nomad-driver-podman`,
		Args: cli.RequireArgCount(1, 1, "the name or the file of a plugin"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inspectPlugin(cmd.Context(), plugins, args[0], asJSON, s)
		},
	}
	plugins.Register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func inspectPlugin(ctx context.Context, flags localplugins.Flags, nameOrFile string, asJSON bool, s *cli.Streams) error {
	local, err := flags.ReadConfig(s)
	if err != nil {
		return err
	}
	wanted := []string{nameOrFile}
	find := func(p supervisor.PluginStatus) bool {
		return p.Serves.Name == nameOrFile || p.Name == nameOrFile || strings.TrimPrefix(p.Name, catalog.DriverPrefix) == nameOrFile
	}
	configured := slices.Clone(local.Config.Plugins)
	if strings.Contains(nameOrFile, "/") {
		path, err := keepOnlyPluginFile(&local, nameOrFile)
		if err != nil {
			return err
		}
		wanted = []string{}
		find = func(p supervisor.PluginStatus) bool { return p.Path == path }
	}
	var found *inspectedPlugin
	var needsConfig *configNeededError
	runErr := localplugins.RunWithTemporaryAgent(ctx, local, wanted, func(a *agent.Agent) {
		found, err = describePlugin(ctx, a, nameOrFile, find, configured)
	})
	if errors.As(err, &needsConfig) {
		fmt.Fprintf(s.Err, "%s needs a configuration, so only the schema of its plugin block is shown: %v\nGive a configuration with a plugin block: -config FILE\n", nameOrFile, needsConfig)
		err = nil
	}
	if err = errors.Join(err, runErr); err != nil {
		err = fmt.Errorf("inspect %s: %w", nameOrFile, err)
	}
	switch {
	case found == nil:
		return err
	case asJSON:
		encoder := json.NewEncoder(s.JSONOutput())
		encoder.SetIndent("", "    ")
		return errors.Join(encoder.Encode(found), err)
	}
	return errors.Join(found.print(s), err)
}

// keepOnlyPluginFile makes file the only plugin of local, and keeps only the plugin block for that file. It returns the
// file's absolute path, which the catalog uses.
func keepOnlyPluginFile(local *localplugins.PluginConfig, file string) (absPath string, err error) {
	absPath, err = filepath.Abs(file)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(absPath)
	switch {
	case err != nil:
		return "", fmt.Errorf("inspect %w", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("inspect %s: it is not a file; give the path of the plugin's program", file)
	}
	name := strings.TrimSuffix(filepath.Base(absPath), ".exe")
	blocks := slices.DeleteFunc(slices.Clone(local.Config.Plugins), func(b catalog.PluginBlock) bool { return b.Name != name })
	if len(blocks) == 0 {
		blocks = append(blocks, catalog.PluginBlock{Name: name})
	}
	local.Config.PluginDir, local.Config.Plugins, local.Config.HookRules = filepath.Dir(absPath), blocks, nil
	return absPath, nil
}

// configNeededError means that a plugin without a plugin block in the configuration has rejected the empty configuration.
type configNeededError struct{ error }

// describePlugin waits for the plugins of a temporary agent, and returns the description of the plugin for which
// matches returns true. If that plugin has rejected its configuration, describePlugin returns both an error and what
// the plugin reports about itself. configured has the plugin blocks of the configuration.
func describePlugin(ctx context.Context, a *agent.Agent, targetForError string, matches func(supervisor.PluginStatus) bool, configured []catalog.PluginBlock) (*inspectedPlugin, error) {
	if err := localplugins.WaitPluginsLaunchedOrFailed(ctx, a); err != nil {
		return nil, err
	}
	plugins := slices.DeleteFunc(a.Supervisor().Plugins(), func(p supervisor.PluginStatus) bool { return !matches(p) })
	if len(plugins) == 0 {
		return nil, fmt.Errorf("there is no such plugin; nomad-lite plugin list shows all, and ./%s is a file in this directory", targetForError)
	}
	plugin := slices.MinFunc(plugins, func(a, b supervisor.PluginStatus) int { return cmp.Compare(inspectionSortKey(a), inspectionSortKey(b)) })
	if rejected := new(launch.ConfigBlockError); errors.As(plugin.Err, &rejected) {
		// The user needs the schema to write the config block that the plugin accepts.
		described, err := newInspectedPlugin(plugin.Path, &supervisor.Description{Info: rejected.Info, ConfigSchema: rejected.Schema}), plugin.Err
		if !slices.ContainsFunc(configured, func(b catalog.PluginBlock) bool { return b.Name == plugin.Name }) {
			err = &configNeededError{err}
		}
		return described, err
	}
	if plugin.Err != nil {
		return nil, plugin.Err
	}
	key := plugin.Serves
	if key.Name == "" {
		key = supervisor.PluginKey{Type: base.TypeHook, Name: plugin.Name} // a builtin hook that has not been started
	}
	d, err := a.Supervisor().Describe(ctx, key)
	if err != nil {
		return nil, err
	}
	p := newInspectedPlugin(plugin.Path, d)
	if d.Info.Type == base.TypeDevice {
		groups := slices.DeleteFunc(a.Supervisor().DeviceGroups(), func(g supervisor.DeviceGroup) bool { return g.PluginName != d.Info.Name })
		p.Devices = devices.ToAPINodeDevices(groups)
	}
	return p, nil
}

// inspectionSortKey returns the sort key by which the most useful of several plugins with one name is selected. The
// lowest comes first.
func inspectionSortKey(p supervisor.PluginStatus) int {
	switch {
	case p.Err != nil:
		return 2
	case p.SupersededBy != "":
		return 1
	}
	return 0
}

// inspectedPlugin is the JSON output of `plugin inspect`.
type inspectedPlugin struct {
	Type         string
	Name         string
	Version      string
	APIVersions  []string
	Path         string                    `json:",omitempty"` // empty for a builtin
	Capabilities *driverCapabilities       `json:",omitempty"`
	Hook         *hookCapabilities         `json:",omitempty"`
	Devices      []*api.NodeDeviceResource `json:",omitempty"` // devices that a device plugin has found

	// ConfigSchema is the schema of the plugin block; nil means that a plugin block has no config.
	ConfigSchema *hclspec.Spec
	// TaskSchema is the schema of the config block of a driver's task; nil for other types.
	TaskSchema *hclspec.Spec `json:",omitempty"`
	// AttachmentSchema is the schema of a hook's lite_hook_NAME; nil for other types.
	AttachmentSchema *hclspec.Spec `json:",omitempty"`
}

// driverCapabilities has the fields of driver.Capabilities, with names in place of the enumeration values.
type driverCapabilities struct {
	SendSignals           bool
	Exec                  bool
	FSIsolation           string
	NetworkIsolationModes []string
	MustCreateNetwork     bool
	MountConfigs          string
	DisableLogCollection  bool
	DynamicWorkloadUsers  bool
}

type hookCapabilities struct {
	HookPoints       []hookPoint
	AllAllocs        bool
	IncludeAllocJSON bool
	ReportsHealth    bool
}

type hookPoint struct {
	Name    string
	Timeout string `json:",omitempty"` // limit for one call; empty means the default of the host
}

func newInspectedPlugin(path string, d *supervisor.Description) *inspectedPlugin {
	p := &inspectedPlugin{
		Type: d.Info.Type.String(), Name: d.Info.Name, Version: d.Info.Version, APIVersions: d.Info.APIVersions, Path: path,
		ConfigSchema: d.ConfigSchema, TaskSchema: d.TaskSchema,
	}
	if c := d.Capabilities; c != nil {
		p.Capabilities = &driverCapabilities{
			SendSignals: c.SendSignals, Exec: c.Exec, FSIsolation: c.FSIsolation.String(), NetworkIsolationModes: []string{},
			MustCreateNetwork: c.MustCreateNetwork, MountConfigs: c.MountConfigs.String(),
			DisableLogCollection: c.DisableLogCollection, DynamicWorkloadUsers: c.DynamicWorkloadUsers,
		}
		for _, mode := range c.NetworkIsolationModes {
			p.Capabilities.NetworkIsolationModes = append(p.Capabilities.NetworkIsolationModes, mode.String())
		}
	}
	if h := d.Hook; h != nil {
		p.AttachmentSchema = h.AttachmentSchema
		p.Hook = &hookCapabilities{AllAllocs: h.AllAllocs, IncludeAllocJSON: h.IncludeAllocJSON, ReportsHealth: h.ReportsHealth}
		for _, subscription := range h.Subscriptions {
			point := hookPoint{Name: subscription.Point.String()}
			if subscription.Timeout > 0 {
				point.Timeout = subscription.Timeout.String()
			}
			p.Hook.HookPoints = append(p.Hook.HookPoints, point)
		}
	}
	return p
}

func (p *inspectedPlugin) print(s *cli.Streams) error {
	page := output.NewPage(s)
	page.AddPairs(output.Pairs{
		{"Type", p.Type}, {"Name", p.Name}, {"Version", p.Version}, {"API Versions", strings.Join(p.APIVersions, ", ")}, {"File", cmp.Or(p.Path, "builtin")},
	})
	if c := p.Capabilities; c != nil {
		page.AddSectionTitle("Capabilities")
		page.AddPairs(output.Pairs{
			{"Send Signals", c.SendSignals},
			{"Exec", c.Exec},
			{"FS Isolation", c.FSIsolation},
			{"Network Isolation Modes", cmp.Or(strings.Join(c.NetworkIsolationModes, ", "), "<none>")},
			{"Must Create Network", c.MustCreateNetwork},
			{"Mount Configs", c.MountConfigs},
			{"Disable Log Collection", c.DisableLogCollection},
			{"Dynamic Workload Users", c.DynamicWorkloadUsers},
		})
	}
	if h := p.Hook; h != nil {
		page.AddSectionTitle("Hook")
		page.AddPairs(output.Pairs{{"All Allocations", h.AllAllocs}, {"Includes Allocation JSON", h.IncludeAllocJSON}, {"Reports Health", h.ReportsHealth}})
		page.AddSectionTitle("Hook Points")
		t := output.NewTable("Hook Point", "Timeout")
		for _, point := range h.HookPoints {
			t.AddRow(point.Name, cmp.Or(point.Timeout, "default"))
		}
		page.AddTable(t)
	}
	if len(p.Devices) > 0 {
		tables.PrintNodeDevices(page, p.Devices, nil)
	}
	printSchema(page, "Configuration Schema", p.ConfigSchema)
	if p.Hook != nil {
		printSchema(page, "Attachment Schema", p.AttachmentSchema)
	}
	if p.Capabilities != nil {
		printSchema(page, "Task Schema", p.TaskSchema)
	}
	return output.PrintPage(s, page)
}

func printSchema(page *output.Page, title string, schema *hclspec.Spec) {
	page.AddSectionTitle(title)
	text := schema.Text()
	if text == "" {
		page.AddLine("<none>")
		return
	}
	page.AddSanitizedLines(text)
}
