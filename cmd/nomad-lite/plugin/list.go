package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginreport"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
)

const listHelp = `List the plugins that are available to jobs, with their health.

If an agent answers, and neither -config nor -plugin-dir is set, its plugins are
listed. Otherwise the plugins that an agent of this machine would have:

Plugins are builtin, or files in the plugin directory. Builtin plugins, and plugins
with a plugin block in the configuration, are started; the command waits for slow
plugins. Other executable files are not started, because they can be any program. A
file with the handshake of plugins in it is listed as ready: a driver or a hook starts
when a job names it, and a device plugin starts only with an agent whose configuration
has a plugin block for it. Another file, such as a script, is listed as unknown.

Exit codes: 0, or 1 when a plugin could not be started.`

func newListCommand(s *cli.Streams) *cobra.Command {
	var plugins localplugins.Flags
	var clientFlags apiclient.Flags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the plugins that are available to jobs",
		Long:  listHelp,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []*pluginstatus.Plugin
			if !cmd.Flags().Changed("config") && !cmd.Flags().Changed("plugin-dir") {
				list = listPluginsOfAgent(cmd.Context(), clientFlags)
			}
			if len(list) == 0 {
				var err error
				if list, err = startAndListPlugins(cmd.Context(), plugins, s); err != nil {
					return err
				}
			}
			return printPluginsErrIfFailed(s, list, asJSON)
		},
	}
	clientFlags.Register(cmd)
	plugins.Register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// listPluginsOfAgent returns the plugins of the agent, or nil if no agent answers.
func listPluginsOfAgent(ctx context.Context, f apiclient.Flags) (rows []*pluginstatus.Plugin) {
	c, err := f.Client()
	if err != nil {
		return nil
	}
	drivers, _ := listNodeDrivers(ctx, c, "") // without them, the rows have no health descriptions
	for _, p := range pluginstatus.ReadReportOrEmpty(c).Processes {
		row := &pluginstatus.Plugin{Name: p.Name, Version: p.Version, Health: p.State, Path: p.Path, Note: p.Error, Failed: p.State == pluginstatus.HealthFailed}
		switch p.Type {
		case base.TypeDriver.String():
			row.Driver = p.Serves
			if i := slices.IndexFunc(drivers, func(d nodeDriver) bool { return d.Driver == p.Serves }); i >= 0 {
				row.Note = cmp.Or(row.Note, drivers[i].HealthDescription)
			}
		case base.TypeHook.String():
			row.Hook = p.Serves
		case base.TypeDevice.String():
			row.Device, row.Note = p.Serves, cmp.Or(row.Note, p.Devices)
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b *pluginstatus.Plugin) int { return strings.Compare(a.Name, b.Name) })
	return rows
}

func startAndListPlugins(ctx context.Context, pluginFlags localplugins.Flags, s *cli.Streams) (rows []*pluginstatus.Plugin, err error) {
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-lite", Level: hclog.Error, Output: s.Err})
	local, err := pluginFlags.ReadConfig(s)
	if err != nil {
		return nil, err
	}
	known, err := local.NewCatalog(nil, logger)
	if err != nil {
		return nil, err
	}
	a, err := agent.Open(ctx, local.NewAgentConfig(known, logger))
	if err != nil {
		return nil, err
	}
	if err := waitPluginsLaunchedOrFailed(ctx, a, s); err == nil {
		rows = newPluginRows(a)
	}
	rows = append(rows, unstartedPluginRows(local.Config.PluginDir, rows)...)
	slices.SortFunc(rows, func(a, b *pluginstatus.Plugin) int { return strings.Compare(a.Name, b.Name) })
	return rows, a.Close()
}

// waitPluginsLaunchedOrFailed waits until the plugins have launched or failed, and prints the names of slow ones. It
// returns an error only if ctx ends.
func waitPluginsLaunchedOrFailed(ctx context.Context, a *agent.Agent, s *cli.Streams) error {
	if err := a.Supervisor().WaitBrieflyForFirstReports(ctx); err != nil {
		return err
	}
	for _, row := range newPluginRows(a) {
		if row.Health == pluginstatus.HealthStarting {
			fmt.Fprintf(s.Err, "Waiting for plugin %q\n", row.Name)
		}
	}
	_ = localplugins.WaitPluginsLaunchedOrFailed(ctx, a) // not an error here, because the list shows the state of a plugin that has not launched
	return ctx.Err()
}

func newPluginRows(a *agent.Agent) (rows []*pluginstatus.Plugin) {
	fingerprints := pluginreport.LatestFingerprints{DriverInfoByName: a.Supervisor().DriverInfoByName(), DeviceGroups: a.Supervisor().DeviceGroups()}
	for _, p := range a.Supervisor().Plugins() {
		rows = append(rows, pluginreport.DescribePlugin(p, fingerprints))
	}
	return rows
}

// unstartedPluginRows returns the executable files in the plugin directory that have no row yet, because no plugin block
// names them. Some may not be plugins. The type of such a plugin is unknown, because only a running plugin reports it.
func unstartedPluginRows(dir string, startedRows []*pluginstatus.Plugin) (rows []*pluginstatus.Plugin) {
	entries, _ := os.ReadDir(dir) // a missing directory was reported earlier
	for _, entry := range entries {
		name := strings.TrimPrefix(entry.Name(), catalog.DriverPrefix)
		info, err := os.Stat(filepath.Join(dir, entry.Name()))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 ||
			slices.ContainsFunc(startedRows, func(r *pluginstatus.Plugin) bool { return strings.TrimPrefix(r.Name, catalog.DriverPrefix) == name }) {
			continue
		}
		row := &pluginstatus.Plugin{
			Name: entry.Name(), Health: "ready", Path: filepath.Join(dir, entry.Name()),
			Note: fmt.Sprintf("a driver or hook starts when a job names %[1]q; a device plugin starts with the agent, if the configuration has a block plugin %[2]q", name, entry.Name()),
		}
		switch hasHandshake, err := containsText(row.Path, basewire.Handshake.MagicCookieKey); {
		case err != nil:
			row.Health, row.Note = "unknown", err.Error()
		case !hasHandshake:
			row.Health = "unknown"
			row.Note = "may be no plugin: the handshake of plugins is not in the file. A script or an archive can start a plugin; to start it: nomad-lite plugin inspect " + shellquote.QuoteIfNeeded(row.Path)
		}
		rows = append(rows, row)
	}
	return rows
}

// containsText reports whether a file contains a text that is shorter than 4 KiB.
func containsText(path, text string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	buffer := make([]byte, 1<<20)
	kept := 0 // bytes at the start of the buffer from the end of the last read, in which the text can start
	for {
		n, err := f.Read(buffer[kept:])
		if bytes.Contains(buffer[:kept+n], []byte(text)) {
			return true, nil
		}
		switch {
		case err == io.EOF:
			return false, nil
		case err != nil:
			return false, err
		}
		end := kept + n
		kept = copy(buffer, buffer[max(0, end-len(text)+1):end])
	}
}

func printPluginsErrIfFailed(s *cli.Streams, rows []*pluginstatus.Plugin, asJSON bool) error {
	var failedErr error
	for _, row := range rows {
		if row.Failed {
			failedErr = &cli.ExitError{Code: 1}
		}
	}
	if asJSON {
		encoder := json.NewEncoder(s.JSONOutput())
		encoder.SetIndent("", "    ")
		if err := encoder.Encode(rows); err != nil {
			return err
		}
		return failedErr
	}
	table := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "Plugin\tServes\tVersion\tHealth\tNote")
	for _, row := range rows {
		cells := []string{row.Name, row.TypeAndName(), row.Version, row.Health, row.Note}
		for i, text := range cells {
			cells[i] = terminal.SanitizeAndTrimLine(text)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return failedErr
}
