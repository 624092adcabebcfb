package variable

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const initHelp = `Write an example variable specification, to spec.nv.hcl or FILE.

Exit codes: 0, or 1 when the file exists already.`

const varExample = `# The path under which jobs find it. A task can read nomad/jobs/JOB of its own job
# without being asked for permission.
path = "nomad/jobs/example"

# namespace = "default"

# What is kept: names and values, 64 KiB at most in all. Names without dots are
# easier to use in templates.
items = {
  user     = "app"
  password = "change me"
}
`

const varExampleJSON = `{
  "Path": "nomad/jobs/example",
  "Namespace": "default",
  "Items": {
    "user": "app",
    "password": "change me"
  }
}
`

type initOptions struct {
	asJSON    bool
	outFormat string
	quiet     bool
}

func newInitCommand(s *cli.Streams) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [flags] [FILE]",
		Short: "Write an example variable specification",
		Long:  initHelp,
		Args:  cli.RequireArgCount(0, 1, "the name of a file, or nothing"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, text := "spec.nv.hcl", varExample
			switch {
			case o.outFormat != "hcl" && o.outFormat != "json":
				return cli.UsageError(cmd, errors.New("-out takes hcl or json"))
			case o.asJSON || o.outFormat == "json":
				name, text = "spec.nv.json", varExampleJSON
			}
			if len(args) > 0 {
				name = args[0]
			}
			return o.writeExampleFile(name, text, s)
		},
	}
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "write JSON, the same as -out json")
	cmd.Flags().StringVar(&o.outFormat, "out", "hcl", "`format` to write: hcl or json")
	cmd.Flags().BoolVar(&o.quiet, "quiet", false, "say nothing")
	return cmd
}

func (o initOptions) writeExampleFile(fileName, text string, s *cli.Streams) error {
	err := cli.WriteNewFile(fileName, text, 0o600) // the user will write secrets into the file
	if errors.Is(err, fs.ErrExist) {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("File %q already exists; name another file as the argument", fileName)
	}
	if err != nil || o.quiet {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "Example variable specification written to %s\nEdit it, and write the variable with: nomad-lite var put @%s\n", fileName, fileName)
	return err
}
