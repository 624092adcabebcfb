package job

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

//go:embed template/long.nomad.hcl
var longExampleJob string

//go:embed template/short.nomad.hcl
var shortExampleJob string

// exampleFileName is the default name of the example. It is Nomad's.
const exampleFileName = "example.nomad.hcl"

// NewInitCommand returns the command "init".
func NewInitCommand(s *cli.Streams) *cobra.Command {
	var short bool
	cmd := &cobra.Command{
		Use:   "init [flags] [FILE]",
		Short: "Write an example of a job file, to begin from",
		Long: `Write an example of a job file, to begin from: ` + exampleFileName + `, if no other
name is given. A file that exists is not overwritten.`,
		Example: `  nomad-lite job init && nomad-lite run ` + exampleFileName + `
  nomad-lite job init -short web.nomad.hcl`,
		Args: cli.RequireArgCount(0, 1, "the name of a file, or nothing for "+exampleFileName),
		RunE: func(_ *cobra.Command, args []string) error {
			return writeExampleJobFile(append(args, exampleFileName)[0], short, s)
		},
	}
	cmd.Flags().BoolVar(&short, "short", false, "without explanations")
	return cmd
}

func writeExampleJobFile(path string, short bool, s *cli.Streams) (err error) {
	text := longExampleJob
	if short {
		text = shortExampleJob
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already\nGive another name: nomad-lite job init FILE", path)
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write job file %s: %w", path, err)
	}
	_, err = fmt.Fprintf(s.Out, "Example job file written to %s\nRun it: nomad-lite run %s\n", path, path)
	return err
}
