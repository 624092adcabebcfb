package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginreport"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

const installHelp = `Copy a plugin into the plugin directory, and record its SHA-256 checksum in the lock
file there. From then on an agent starts the file only with this content. To replace
a plugin, install the new file under the same name. A running agent uses the new file when
it starts the plugin the next time: nomad-lite plugin restart starts it at once.

The plugin is started once before, to see that it works. Nothing is downloaded.

Exit codes: 0, or 1 when nothing was installed.`

func newInstallCommand(s *cli.Streams) *cobra.Command {
	var plugins localplugins.Flags
	var client apiclient.Flags
	var name string
	cmd := &cobra.Command{
		Use:     "install [flags] FILE",
		Short:   "Copy a plugin into the plugin directory",
		Long:    installHelp,
		Example: "  nomad-lite plugin install -plugin-dir /opt/nomad-lite/plugins ./nomad-driver-podman",
		Args:    cli.RequireArgCount(1, 1, "the file of a plugin"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				name = filepath.Base(args[0])
			}
			return tryStartAndInstallPlugin(cmd.Context(), plugins, &client, args[0], name, s)
		},
	}
	plugins.RegisterPluginDirFlags(cmd)
	client.Register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "`name` of the file in the plugin directory; default: the name of FILE")
	return cmd
}

func tryStartAndInstallPlugin(ctx context.Context, flags localplugins.Flags, client *apiclient.Flags, sourceFile, installedName string, s *cli.Streams) error {
	local, err := flags.ReadConfigWithoutPluginBlocks(s)
	if err != nil {
		return err
	}
	dir := local.Config.PluginDir
	i, err := catalog.StageInstallation(dir, sourceFile, installedName)
	if err != nil {
		return fmt.Errorf("install %s: %w", sourceFile, err)
	}
	local.Config.PluginDir = i.StagingDir()
	local.Config.Plugins = append(local.Config.Plugins, catalog.PluginBlock{Name: installedName})
	started, err := localplugins.TryStartPlugin(ctx, local, installedName)
	if err != nil {
		return errors.Join(fmt.Errorf("install %s: %w", sourceFile, err), i.Discard())
	}
	if err := i.Commit(); err != nil {
		return errors.Join(fmt.Errorf("install %s: %w", sourceFile, err), i.Discard())
	}
	status := pluginreport.DescribePlugin(started, pluginreport.LatestFingerprints{})
	path := filepath.Join(dir, installedName)
	_, err = fmt.Fprintf(s.Out, `Installed %s, version %s, as %s
SHA-256: %s

%s
`, status.TypeAndName(), status.Version, path, i.SHA256, describeUseByAgent(client, path, installedName))
	return err
}

// describeUseByAgent returns a text about when the agent of the flags starts an installed file. An agent that cannot be
// reached is like an agent without the plugin.
func describeUseByAgent(flags *apiclient.Flags, path, installedName string) string {
	notUsed := fmt.Sprintf("The agent starts it when its configuration has:\n\nplugin %q {}", installedName)
	if !flags.CanFindAgent() {
		return notUsed
	}
	c, err := flags.Client()
	if err != nil {
		return notUsed
	}
	installed, err := os.Stat(path)
	if err != nil {
		return notUsed
	}
	for _, p := range pluginstatus.ReadReportOrEmpty(c).Processes {
		// The paths can differ by links. An agent on another machine can have the same path.
		if used, err := os.Stat(p.Path); !flags.AgentIsOnThisMachine() || p.Path == "" || err != nil || !os.SameFile(used, installed) {
			continue
		}
		if p.PID == 0 {
			return fmt.Sprintf("The running agent starts this version at the next start of the plugin. To start it now: nomad-lite plugin restart %s", p.Name)
		}
		return fmt.Sprintf("The running agent uses the earlier version (pid %d) until the plugin is started again. To start the new version now, while tasks continue: nomad-lite plugin restart %s", p.PID, p.Name)
	}
	return notUsed
}

const verifyHelp = `Compare the files of the plugin directory with its lock file, which plugin install
writes. A changed file is not started. A file that was not installed is started with
any content.

Exit codes: 0, or 1 when a file has changed or is missing.`

func newVerifyCommand(s *cli.Streams) *cobra.Command {
	var plugins localplugins.Flags
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "verify [flags]",
		Short:   "Compare installed plugins with their checksums",
		Long:    verifyHelp,
		Example: "  nomad-lite plugin verify -plugin-dir /opt/nomad-lite/plugins",
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			local, err := plugins.ReadConfigWithoutPluginBlocks(s)
			if err != nil {
				return err
			}
			files, err := catalog.CompareFilesWithLock(local.Config.PluginDir)
			if err != nil {
				return fmt.Errorf("verify %s: %w", local.Config.PluginDir, err)
			}
			return printFilesErrIfChanged(files, asJSON, s)
		},
	}
	plugins.RegisterPluginDirFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printFilesErrIfChanged(files []catalog.FileVerification, asJSON bool, s *cli.Streams) error {
	var exitErr error
	t := output.NewTable("Plugin", "State", "SHA-256", "Installed", "From")
	for _, f := range files {
		if f.State == catalog.FileChanged || f.State == catalog.FileMissing {
			exitErr = &cli.ExitError{Code: 1}
		}
		installed := "-"
		if !f.InstalledAt.IsZero() {
			installed = output.FormatTimestamp(f.InstalledAt)
		}
		t.AddRow(f.Name, f.State, f.SHA256, installed, f.Source)
	}
	if asJSON {
		encoder := json.NewEncoder(s.JSONOutput())
		encoder.SetIndent("", "    ")
		return errors.Join(encoder.Encode(files), exitErr)
	}
	p := output.NewPage(s)
	if len(files) == 0 {
		p.AddLine("No plugins")
	} else {
		p.AddTable(t)
	}
	return errors.Join(output.PrintPage(s, p), exitErr)
}
