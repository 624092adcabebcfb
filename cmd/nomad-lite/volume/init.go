package volume

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const initHelp = `Write an example volume specification, to volume.hcl or FILE.

Exit codes: 0, or 1 when the file exists already.`

const volumeExample = `name = "data"
type = "host"

# The plugin that creates the volume: the builtin mkdir, which makes a directory, or
# a program in the directory of the host volume plugins. 'volume register' needs no
# plugin, but host_path = "/a/directory".
plugin_id = "mkdir"

# capacity_min = "1GiB"
# capacity_max = "10GiB"

# How jobs can use it. Each capability is one combination that a volume block can
# request.
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

# For the plugin. Those of mkdir are the mode and the owner of the directory.
parameters {
  mode = "0700"
  # uid = "1000"
  # gid = "1000"
}
`

const volumeExampleJSON = `{
  "name": "data",
  "type": "host",
  "plugin_id": "mkdir",
  "capability": [
    {
      "access_mode": "single-node-writer",
      "attachment_mode": "file-system"
    }
  ],
  "parameters": {
    "mode": "0700"
  }
}
`

func newInitCommand(s *cli.Streams) *cobra.Command {
	var json bool
	var volumeType string
	cmd := &cobra.Command{
		Use:   "init [flags] [FILE]",
		Short: "Write an example volume specification",
		Long:  initHelp,
		Args:  cli.RequireArgCount(0, 1, "the name of a file, or nothing"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if volumeType != "host" {
				return cli.UsageError(cmd, errors.New("-type takes host: there are no CSI volumes"))
			}
			name, text := "volume.hcl", volumeExample
			if json {
				name, text = "volume.json", volumeExampleJSON
			}
			if len(args) > 0 {
				name = args[0]
			}
			return writeExampleFile(name, text, s)
		},
	}
	cmd.Flags().BoolVar(&json, "json", false, "write JSON")
	cmd.Flags().StringVar(&volumeType, "type", "host", "`kind` of the volume: host")
	return cmd
}

func writeExampleFile(fileName, text string, s *cli.Streams) error {
	err := cli.WriteNewFile(fileName, text, 0o644)
	if errors.Is(err, fs.ErrExist) {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("File %q already exists; name another file as the argument", fileName)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "Example volume specification written to %s\nEdit it, and create the volume with: nomad-lite volume create %s\n", fileName, fileName)
	return err
}
