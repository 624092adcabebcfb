package statefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/snapshot"
)

func newSnapshotRedactCommand(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "redact [flags] FILE",
		Short: "Remove the keys of the variables from a snapshot",
		Long: `Replace a snapshot by one without the keys that decrypt its variables, so that it
can be given to others. The variables of such a snapshot can be read only together
with the file keyring.json of the data directory. If the command fails, the file is
as before.`,
		Args: cli.RequireArgCount(1, 1, "the file of a snapshot"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := redactFile(args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(s.Out, "Snapshot redacted: %s\n", args[0])
			return err
		},
	}
}

// redactFile replaces the archive at path by one without keys.
func redactFile(path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// The files beside the archive are on the same file system, and only this user can read them.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".redact-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	redacted, err := os.OpenFile(filepath.Join(dir, "redacted"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(snapshot.Redact(f, redacted, dir), redacted.Sync(), redacted.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.Rename(redacted.Name(), path)
}

func newSnapshotStateCommand(s *cli.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "state [flags] FILE [TABLE [KEY]]",
		Short: "Print the state in a snapshot",
		Long: `Print the state in a snapshot: the number of records, the records of a table, or
one record as JSON, as 'nomad-lite operator state inspect' does for a data
directory. The values of variables and environments, tokens, and the texts of jobs
and templates are not shown.`,
		Example: `  nomad-lite operator snapshot state backup.snap
  nomad-lite operator snapshot state backup.snap jobs default/web`,
		Args: cli.RequireArgCount(1, 3, "the file of a snapshot, and perhaps a table and a key"),
		RunE: func(_ *cobra.Command, args []string) error {
			contents, err := readSnapshotState(args[0])
			if err != nil {
				return err
			}
			return printContents(s, contents, args[1:], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// readSnapshotState reads the state file in the archive at path.
func readSnapshotState(path string) (contents *store.FileContents, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir, err := os.MkdirTemp("", "nomad-lite-snapshot-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err := snapshot.Unpack(f, dir); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return store.InspectFile(filepath.Join(dir, snapshot.StateFile))
}
