package variable

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const purgeHelp = `Delete a variable permanently.

Exit codes: 0, also when there was none; 1 when -check-index did not match.`

type purgeOptions struct {
	clientFlags apiclient.Flags
	checkIndex  uint64
}

func newPurgeCommand(s *cli.Streams) *cobra.Command {
	var o purgeOptions
	cmd := &cobra.Command{
		Use:     "purge [flags] PATH",
		Short:   "Delete a variable",
		Long:    purgeHelp,
		Example: "  nomad-lite var purge nomad/jobs/web",
		Args:    onePathArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return purgeVariable(cmd.Context(), o, args[0], cmd.Flags().Changed("check-index"), s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(completeVariables(&o.clientFlags)),
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().Uint64Var(&o.checkIndex, "check-index", 0, "delete it only if its modify `index` is this one")
	return cmd
}

func purgeVariable(ctx context.Context, o purgeOptions, path string, checkIndexSet bool, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	if checkIndexSet {
		_, err = c.Variables().CheckedDelete(path, o.checkIndex, apiclient.WriteOptions(ctx, ""))
	} else {
		_, err = c.Variables().Delete(path, apiclient.WriteOptions(ctx, ""))
	}
	if conflict := new(api.ErrCASConflict); errors.As(err, conflict) {
		return newConflictError(path, conflict)
	}
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("delete variable %q", path), err)
	}
	_, err = fmt.Fprintf(s.Out, "Successfully purged variable %q!\n", path)
	return err
}
