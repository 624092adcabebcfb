package statefile

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/store/snapshot"
)

// packagedDataDir is the data directory of an agent that a package has installed.
const packagedDataDir = "/var/lib/nomad-lite"

const snapshotRestoreHelp = `Replace the state of a data directory by that of a snapshot.

No agent may use the directory; tasks may run. The next agent recovers the tasks of the
snapshot that still run, ends those that the snapshot does not have, and starts what is
missing. The replaced state file stays beside the new one.`

// NewSnapshotCommands returns the commands that read snapshots on this machine.
func NewSnapshotCommands(s *cli.Streams) []*cobra.Command {
	return []*cobra.Command{newSnapshotInspectCommand(s), newSnapshotRedactCommand(s), newSnapshotRestoreCommand(s), newSnapshotStateCommand(s)}
}

func newSnapshotInspectCommand(s *cli.Streams) *cobra.Command {
	var format output.FormatFlags
	cmd := &cobra.Command{
		Use:   "inspect [flags] FILE",
		Short: "Check a snapshot, and print what it is",
		Args:  cli.RequireArgCount(1, 1, "the file of a snapshot"),
		RunE: func(_ *cobra.Command, args []string) error {
			meta, err := verifyFile(args[0])
			if err != nil {
				return err
			}
			if format.IsSet() {
				return format.Print(s, meta)
			}
			keys := "yes"
			if !meta.HasKeys {
				keys = "no"
			}
			p := output.NewPage(s)
			t := output.NewTable("Property", "Value")
			for _, row := range [][2]string{
				{"Version", meta.Version}, {"Time", meta.Time.Format(time.RFC3339)}, {"Index", fmt.Sprint(meta.Index)}, {"Node ID", meta.NodeID}, {"Keys of variables", keys},
			} {
				t.AddRow(row[0], row[1])
			}
			p.AddTableOrMessage(t, "")
			return output.PrintPage(s, p)
		},
	}
	format.Register(cmd)
	return cmd
}

func verifyFile(path string) (*snapshot.Meta, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	meta, err := snapshot.Unpack(f, "")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return meta, nil
}

func newSnapshotRestoreCommand(s *cli.Streams) *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:     "restore [flags] FILE",
		Short:   "Replace the state of a data directory by a snapshot",
		Long:    snapshotRestoreHelp,
		Example: "  nomad-lite operator snapshot restore -data-dir /var/lib/nomad-lite backup.snap",
		Args:    cli.RequireArgCount(1, 1, "the file of a snapshot"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: s.Err})
			restored, err := datadirectory.RestoreSnapshot(cmd.Context(), dataDir, f, version.String(), logger)
			if errors.Is(err, datadirectory.ErrInUse) {
				return fmt.Errorf("%s: %w: stop the agent first; its tasks continue", dataDir, err)
			}
			if errors.Is(err, datadirectory.ErrLostDirProcesses) {
				return fmt.Errorf("%s: %w: end them first: nomad-lite agent stop -all %s", dataDir, err, shellquote.Quote(dataDir))
			}
			if err != nil {
				return fmt.Errorf("restore %s: %w", args[0], err)
			}
			p := output.NewPage(s)
			p.AddLine("Restored the state of %s, at index %d, in %s", restored.Meta.Time.Format(time.RFC3339), restored.Meta.Index, dataDir)
			for _, file := range restored.ReplacedFiles {
				p.AddLine("Kept the previous file as %s", file)
			}
			if restored.TasksOwnerDir != "" {
				p.AddLine("The tasks belong to %s, so that no agent starts here as long as they run", restored.TasksOwnerDir)
			}
			return output.PrintPage(s, p)
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", packagedDataDir, "`directory` whose state is replaced")
	return cmd
}
