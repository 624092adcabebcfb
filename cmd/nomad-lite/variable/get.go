package variable

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const getHelp = `Show a variable and its items: in a table on a terminal, as JSON in a pipe.

Exit codes: 0, or 1 when there is no such variable or item.`

const getExamples = `  nomad-lite var get nomad/jobs/web
  nomad-lite var get -item password nomad/jobs/web    the bare value
  nomad-lite var get -out hcl nomad/jobs/web          as 'var put' reads it`

type getOptions struct {
	clientFlags apiclient.Flags
	outputFlags outputFlags
	itemName    string
}

func newGetCommand(s *cli.Streams) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:     "get [flags] PATH",
		Short:   "Show a variable",
		Long:    getHelp,
		Example: getExamples,
		Args:    onePathArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return getAndPrintVariable(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(completeVariables(&o.clientFlags)),
	}
	o.clientFlags.Register(cmd)
	o.outputFlags.registerAndCheckBeforeRun(cmd, "table", "hcl", "json", "go-template", "none")
	cmd.Flags().StringVar(&o.itemName, "item", "", "print the value of this `item` only")
	return cmd
}

func getAndPrintVariable(ctx context.Context, o getOptions, path string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	v, _, err := c.Variables().Read(path, apiclient.QueryOptions(ctx, ""))
	if errors.Is(err, api.ErrVariablePathNotFound) {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Variable not found: %q\nList the variables: nomad-lite var list", path)
	}
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read variable %q", path), err)
	}
	cli.SetPageForUIFlag(ctx, cli.VariableWebPagePath(v.Path, v.Namespace))
	if o.itemName == "" {
		return o.outputFlags.printVariable(s, v, "table")
	}
	value, known := v.Items[o.itemName]
	if !known {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Variable does not contain %q item; it has %s", o.itemName, output.JoinSortedKeys(v.Items))
	}
	_, err = fmt.Fprintln(s.Out, value)
	return err
}
