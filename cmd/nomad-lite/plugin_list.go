package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
)

const pluginListHelp = `List the plugins that a job could use, with their health.

Plugins come from the box and from the plugin directory. Those in the box, and
those that a plugin block of the configuration names, are started and asked; one
that is slow is waited for.

Exit codes: 0, or 1 when a plugin could not be started.`

func newPluginListCommand(s *streams) *cobra.Command {
	var plugins pluginFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the plugins that a job could use",
		Long:  pluginListHelp,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := listPlugins(cmd.Context(), plugins, s)
			if err != nil {
				return err
			}
			return printPlugins(s, list, asJSON)
		},
	}
	plugins.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// pluginRow is one plugin in the list.
type pluginRow struct {
	Name    string
	Driver  string `json:",omitempty"`
	Hook    string `json:",omitempty"`
	Version string
	Health  string
	Path    string `json:",omitempty"`
	Note    string `json:",omitempty"` // why the plugin does not run, or its health message
	failed  bool
}

func (r *pluginRow) serves() string {
	switch {
	case r.Hook != "":
		return "hook " + r.Hook
	case r.Driver != "":
		return "driver " + r.Driver
	}
	return ""
}

func listPlugins(ctx context.Context, plugins pluginFlags, s *streams) (rows []*pluginRow, err error) {
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-lite", Level: hclog.Error, Output: s.err})
	local, err := plugins.read(s)
	if err != nil {
		return nil, err
	}
	known, err := local.catalog(nil, logger)
	if err != nil {
		return nil, err
	}
	a, err := agent.Open(ctx, local.agent(known, logger))
	if err != nil {
		return nil, err
	}
	if err := answered(ctx, a, s); err == nil {
		rows = rowsOf(a)
	}
	rows = append(rows, waiting(local.config.PluginDir, rows)...)
	slices.SortFunc(rows, func(a, b *pluginRow) int { return strings.Compare(a.Name, b.Name) })
	return rows, a.Close()
}

// answerLimit is longer than the launch timeout of a plugin.
const answerLimit = 90 * time.Second

// answered waits until the plugins have launched, and after a while prints those that are
// missing. It returns an error only when ctx ends.
func answered(ctx context.Context, a *agent.Agent, s *streams) error {
	if err := a.Ready(ctx); err != nil {
		return err
	}
	for _, row := range rowsOf(a) {
		if row.Health == healthStarting {
			fmt.Fprintf(s.err, "Waiting for plugin %q\n", row.Name)
		}
	}
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_ = a.AllReady(limited) // the list shows plugins that have not launched
	return ctx.Err()
}

func rowsOf(a *agent.Agent) (rows []*pluginRow) {
	drivers := a.Drivers()
	for _, p := range a.Plugins() {
		rows = append(rows, pluginRowOf(p, drivers[p.Serves.Name]))
	}
	return rows
}

// waiting returns the programs in the plugin directory that start only when a job needs
// them. Some may not be plugins.
func waiting(dir string, asked []*pluginRow) (rows []*pluginRow) {
	entries, _ := os.ReadDir(dir) // a missing directory was reported earlier
	for _, entry := range entries {
		name := strings.TrimPrefix(entry.Name(), catalog.DriverPrefix)
		info, err := os.Stat(filepath.Join(dir, entry.Name()))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 ||
			slices.ContainsFunc(asked, func(r *pluginRow) bool { return strings.TrimPrefix(r.Name, catalog.DriverPrefix) == name }) {
			continue
		}
		rows = append(rows, &pluginRow{
			Name: entry.Name(), Health: "ready", Path: filepath.Join(dir, entry.Name()),
			Note: fmt.Sprintf("starts when a job asks for the driver or hook %q", name),
		})
	}
	return rows
}

// healthStarting is the health of a plugin that has not launched yet.
const healthStarting = "starting"

func pluginRowOf(p supervisor.Plugin, info supervisor.Info) *pluginRow {
	row := &pluginRow{Name: p.Name, Version: p.Version, Path: p.Path}
	if p.Serves.Type == base.TypeHook {
		row.Hook = p.Serves.Name
	} else {
		row.Driver, row.Note = p.Serves.Name, info.Description
	}
	switch {
	case p.Err != nil:
		row.Health, row.Note, row.failed = "failed", p.Err.Error(), true
	case p.Superseded != "":
		row.Health, row.Note = "unused", p.Superseded
	case p.Idle:
		row.Hook, row.Health, row.Note = p.Name, "ready", "starts when a job needs it"
	case p.Takes != nil:
		row.Health, row.Note = "healthy", hookPointsOf(p.Takes)
	case p.Serves.Name == "":
		row.Health, row.Note = healthStarting, "has not answered yet"
	case !info.Detected:
		row.Health = "undetected"
	case !info.Healthy:
		row.Health = "unhealthy"
	default:
		row.Health = "healthy"
	}
	return row
}

// hookPointsOf returns the hook points at which a hook is called.
func hookPointsOf(d *hook.Description) string {
	var names []string
	for _, p := range d.Subscriptions {
		names = append(names, p.Point.String())
	}
	text := strings.Join(names, ", ")
	if d.AllAllocs {
		text += "; of every allocation"
	}
	return text
}

func printPlugins(s *streams, rows []*pluginRow, asJSON bool) error {
	var failed error
	for _, row := range rows {
		if row.failed {
			failed = &exitError{code: 1}
		}
	}
	if asJSON {
		encoder := json.NewEncoder(s.out)
		encoder.SetIndent("", "    ")
		if err := encoder.Encode(rows); err != nil {
			return err
		}
		return failed
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "Plugin\tServes\tVersion\tHealth\tNote")
	for _, row := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Name, row.serves(), row.Version, row.Health, row.Note)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return failed
}
