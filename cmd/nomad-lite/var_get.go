package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const varGetHelp = `Show a variable with what is in it: in a table on a terminal, as JSON in a pipe.

Exit codes: 0, or 1 when there is no such variable or item.`

const varGetExamples = `  nomad-lite var get nomad/jobs/web
  nomad-lite var get -item password nomad/jobs/web    the bare value
  nomad-lite var get -out hcl nomad/jobs/web          as 'var put' reads it`

type varGetOptions struct {
	client clientFlags
	output varOutput
	item   string
}

func newVarGetCommand(s *streams) *cobra.Command {
	var o varGetOptions
	cmd := &cobra.Command{
		Use:     "get [flags] PATH",
		Short:   "Show a variable",
		Long:    varGetHelp,
		Example: varGetExamples,
		Args:    oneVariable,
		RunE: func(cmd *cobra.Command, args []string) error {
			return getVariable(cmd.Context(), o, args[0], s)
		},
		ValidArgsFunction: firstArg(o.client.completeVariables),
	}
	o.client.register(cmd)
	o.output.register(cmd, "table", "hcl", "json", "go-template", "none")
	cmd.Flags().StringVar(&o.item, "item", "", "print the value of this `item` only, without a line end")
	return cmd
}

func getVariable(ctx context.Context, o varGetOptions, path string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	v, _, err := c.Variables().Read(path, query(ctx, ""))
	if errors.Is(err, api.ErrVariablePathNotFound) {
		return fmt.Errorf("there is no variable %q\nSee those that there are: nomad-lite var list", path)
	}
	if err != nil {
		return failed(fmt.Sprintf("read variable %q", path), err)
	}
	if o.item == "" {
		return o.output.print(s, v, "table")
	}
	value, known := v.Items[o.item]
	if !known {
		return fmt.Errorf("variable %q has no item %q; it has %s", path, o.item, names(v.Items))
	}
	_, err = fmt.Fprint(s.out, value)
	return err
}
