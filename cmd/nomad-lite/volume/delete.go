package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const deleteHelp = `Delete a volume and its data, with its plugin. The directory of a registered volume without
a plugin is kept.

A volume that an allocation uses is not deleted.`

type deleteOptions struct {
	clientFlags apiclient.Flags
	volumeType  string
	force       bool
}

func newDeleteCommand(s *cli.Streams) *cobra.Command {
	var o deleteOptions
	cmd := &cobra.Command{
		Use:               "delete [flags] VOLUME",
		Short:             "Delete a volume",
		Long:              deleteHelp,
		Args:              cli.RequireArgCount(1, 1, "one argument: the id of a volume, or its beginning"),
		ValidArgsFunction: apiclient.CompleteID(&o.clientFlags, &apiclient.HostVolumeLookup),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.volumeType != "host" {
				return cli.UsageError(cmd, errors.New("-type takes host"))
			}
			return o.deleteVolume(cmd.Context(), args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.volumeType, "type", "host", "`kind` of the volume: host")
	cmd.Flags().BoolVar(&o.force, "force", false, "forget the volume also if its plugin fails, and delete the claims of groups")
	return cmd
}

func (o *deleteOptions) deleteVolume(ctx context.Context, volumeIDPrefix string, s *cli.Streams) error {
	c, v, err := apiclient.ConnectAndFind(ctx, &o.clientFlags, &apiclient.HostVolumeLookup, volumeIDPrefix)
	if err != nil {
		return err
	}
	if _, _, err := c.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: v.ID, Force: o.force}, apiclient.WriteOptions(ctx, v.Namespace)); err != nil {
		return apiclient.WrapErrorWithAdvice("delete volume", err)
	}
	_, err = fmt.Fprintf(s.Out, "Successfully deleted volume %q!\n", v.ID)
	return err
}
