package ui

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// AddUIFlag adds the flag -ui to a command with connection flags. After the command has run, the flag opens the page
// that the command has set with cli.SetPageForUIFlag, even if the command has failed since. If the command has set none
// and was successful, the flag opens defaultPagePath, unless that is empty. The flag prints to standard error, and does
// not change the exit code of the command.
func AddUIFlag(cmd *cobra.Command, defaultPagePath string, s *cli.Streams) {
	open := cmd.Flags().Bool("ui", false, "open the web page about it in a browser")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*open {
			return run(cmd, args)
		}
		path := ""
		cmd.SetContext(cli.WithPageForUIFlag(cmd.Context(), &path))
		err := run(cmd, args)
		if path == "" && err == nil {
			path = defaultPagePath
		}
		if path == "" {
			return err
		}
		if failed := openPageOfSelectedAgent(cmd, path, s); failed != nil {
			fmt.Fprintln(s.Err, "warning: the web page was not opened:", failed)
		}
		return err
	}
}

// openPageOfSelectedAgent opens a page of the agent that the connection flags of a command select.
func openPageOfSelectedAgent(cmd *cobra.Command, path string, s *cli.Streams) error {
	var o options
	connection := new(cobra.Command)
	o.clientFlags.Register(connection)
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if connection.Flags().Lookup(f.Name) != nil {
			err = errors.Join(err, connection.Flags().Set(f.Name, f.Value.String()))
		}
	})
	if err != nil {
		return err
	}
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	toErr := *s
	toErr.Out = s.Err
	return openAgentPage(cmd.Context(), o, c, "/ui/"+path, &toErr)
}
