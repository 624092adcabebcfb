package operator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const snapshotSaveHelp = `Save a snapshot of the state of the agent in a file, while the agent runs.

The file has the jobs, the allocations, the records by which an agent recovers running
tasks, and the variables with the keys that decrypt them: whoever reads the file reads
all variables. It has no file of a task. Without FILE, the name is backup-TIME.snap.`

// NewSnapshotCommand returns the command "snapshot" with its subcommand save and those of the caller, which read snapshots on
// this machine.
func NewSnapshotCommand(s *cli.Streams, others ...*cobra.Command) *cobra.Command {
	return cli.NewGroupCommand("snapshot", "Save and restore the state of an agent", append([]*cobra.Command{newSnapshotSaveCommand(s)}, others...)...)
}

func newSnapshotSaveCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	var stale, omitKeys bool
	cmd := &cobra.Command{
		Use:     "save [flags] [FILE]",
		Short:   "Save a snapshot of the state",
		Long:    snapshotSaveHelp,
		Example: "  nomad-lite operator snapshot save backup.snap",
		Args:    cli.RequireArgCount(0, 1, "the name of a new file, or nothing"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "backup-" + time.Now().UTC().Format("20060102T150405Z") + ".snap"
			if len(args) == 1 {
				path = args[0]
			}
			c, err := client.Client()
			if err != nil {
				return err
			}
			q := apiclient.QueryOptions(cmd.Context(), "")
			if omitKeys {
				q.Params = map[string]string{"without_keys": "true"}
			}
			snapshot, err := c.Operator().Snapshot(q)
			if err != nil {
				return apiclient.WrapErrorWithAdvice("save snapshot", err)
			}
			defer snapshot.Close()
			if err := writeNewFile(path, snapshot); err != nil {
				return fmt.Errorf("save snapshot: %w", err)
			}
			_, err = fmt.Fprintf(s.Out, "State file written to %s\n", path)
			return err
		},
	}
	client.Register(cmd)
	cmd.Flags().BoolVar(&stale, "stale", false, "accepted without effect: there is one server")
	for _, name := range []string{"redact", "without-keys"} { // -redact is Nomad's name
		cmd.Flags().BoolVar(&omitKeys, name, false, "leave out the keys of the variables: they are in the file keyring.json of the data directory")
	}
	return cmd
}

// writeNewFile writes content to a file that only this user can read. It removes the file after an error.
func writeNewFile(path string, content io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: choose another name", path)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
