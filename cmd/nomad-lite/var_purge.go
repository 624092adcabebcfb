package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const varPurgeHelp = `Delete a variable for good.

Exit codes: 0, also when there was none; 1 when -check-index did not match.`

type varPurgeOptions struct {
	client     clientFlags
	checkIndex uint64
}

func newVarPurgeCommand(s *streams) *cobra.Command {
	var o varPurgeOptions
	cmd := &cobra.Command{
		Use:     "purge [flags] PATH",
		Short:   "Delete a variable",
		Long:    varPurgeHelp,
		Example: "  nomad-lite var purge nomad/jobs/web",
		Args:    oneVariable,
		RunE: func(cmd *cobra.Command, args []string) error {
			return purgeVariable(cmd.Context(), o, args[0], cmd.Flags().Changed("check-index"), s)
		},
		ValidArgsFunction: firstArg(o.client.completeVariables),
	}
	o.client.register(cmd)
	cmd.Flags().Uint64Var(&o.checkIndex, "check-index", 0, "delete it only if its modify `index` is this one")
	return cmd
}

func purgeVariable(ctx context.Context, o varPurgeOptions, path string, checks bool, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	if checks {
		_, err = c.Variables().CheckedDelete(path, o.checkIndex, write(ctx, ""))
	} else {
		_, err = c.Variables().Delete(path, write(ctx, ""))
	}
	if conflict := new(api.ErrCASConflict); errors.As(err, conflict) {
		return variableConflict(path, conflict)
	}
	if err != nil {
		return failed(fmt.Sprintf("delete variable %q", path), err)
	}
	_, err = fmt.Fprintf(s.out, "Successfully purged variable %q!\n", path)
	return err
}
