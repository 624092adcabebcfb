package volume

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const createHelp = `Create a volume with its plugin, from the specification in FILE ("-": standard input).
'nomad-lite volume init' writes an example. With the id of a volume, its capacity and
capabilities are changed.`

const registerHelp = `Register a directory that exists as a volume, from the specification in FILE ("-":
standard input), which names it with host_path. The agent never deletes such a directory,
unless the volume names a plugin.`

const oneSpecification = `one argument: the file with the specification of a volume, or "-"`

type createOrRegisterOptions struct {
	clientFlags      apiclient.Flags
	overrideVolumeID string
	detach           bool
	policyOverride   bool
	verbose          bool
}

func newCreateCommand(s *cli.Streams) *cobra.Command {
	var o createOrRegisterOptions
	cmd := &cobra.Command{
		Use:   "create [flags] FILE",
		Short: "Create a volume",
		Long:  createHelp,
		Args:  cli.RequireArgCount(1, 1, oneSpecification),
		RunE:  func(cmd *cobra.Command, args []string) error { return o.createVolume(cmd.Context(), args[0], s) },
	}
	o.registerSharedFlags(cmd)
	cmd.Flags().BoolVar(&o.detach, "detach", false, "do not wait until the volume is ready")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

func newRegisterCommand(s *cli.Streams) *cobra.Command {
	var o createOrRegisterOptions
	cmd := &cobra.Command{
		Use:   "register [flags] FILE",
		Short: "Register a directory as a volume",
		Long:  registerHelp,
		Args:  cli.RequireArgCount(1, 1, oneSpecification),
		RunE:  func(cmd *cobra.Command, args []string) error { return o.registerVolume(cmd.Context(), args[0], s) },
	}
	o.registerSharedFlags(cmd)
	return cmd
}

func (o *createOrRegisterOptions) registerSharedFlags(cmd *cobra.Command) {
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.overrideVolumeID, "id", "", "change the volume with this `id`")
	cmd.Flags().BoolVar(&o.policyOverride, "policy-override", false, "has no effect: there are no policies")
}

// connectAndReadVolume reads a volume from a specification. The flag -id overrides the ID in the specification.
func (o *createOrRegisterOptions) connectAndReadVolume(path string, s *cli.Streams) (*api.Client, *api.HostVolume, error) {
	v, err := readSpecification(path, s)
	if err != nil {
		return nil, nil, err
	}
	if o.overrideVolumeID != "" {
		v.ID = o.overrideVolumeID
	}
	c, err := o.clientFlags.Client()
	return c, v, err
}

func (o *createOrRegisterOptions) createVolume(ctx context.Context, path string, s *cli.Streams) error {
	c, v, err := o.connectAndReadVolume(path, s)
	if err != nil {
		return err
	}
	reply, _, err := c.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: v, PolicyOverride: o.policyOverride}, apiclient.WriteOptions(ctx, v.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("create volume", err)
	}
	v = reply.Volume
	if _, err := fmt.Fprintf(s.Out, "==> Created host volume %s with ID %s\n", v.Name, v.ID); err != nil || o.detach {
		return err
	}
	if v, err = waitVolumeReady(ctx, c, v); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "  ✓ Host volume %q %s\n", output.ShortIDUnlessVerbose(v.ID, o.verbose), v.State)
	return err
}

// waitVolumeReady waits until a volume is no longer pending, and returns an error unless it is then ready.
func waitVolumeReady(ctx context.Context, c *api.Client, v *api.HostVolume) (*api.HostVolume, error) {
	for v.State == api.HostVolumeStatePending {
		q := apiclient.QueryOptions(ctx, v.Namespace)
		q.WaitIndex, q.WaitTime = v.ModifyIndex, time.Minute
		next, _, err := c.HostVolumes().Get(v.ID, q)
		if err != nil {
			return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read volume %q", v.ID), err)
		}
		v = next
	}
	if v.State != api.HostVolumeStateReady {
		return nil, fmt.Errorf("host volume %q is %s: 'nomad-lite volume delete %s' removes it", v.ID, v.State, v.ID)
	}
	return v, nil
}

func (o *createOrRegisterOptions) registerVolume(ctx context.Context, path string, s *cli.Streams) error {
	c, v, err := o.connectAndReadVolume(path, s)
	if err != nil {
		return err
	}
	reply, _, err := c.HostVolumes().Register(&api.HostVolumeRegisterRequest{Volume: v, PolicyOverride: o.policyOverride}, apiclient.WriteOptions(ctx, v.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("register volume", err)
	}
	_, err = fmt.Fprintf(s.Out, "==> Registered host volume %s with ID %s\n", reply.Volume.Name, reply.Volume.ID)
	return err
}
