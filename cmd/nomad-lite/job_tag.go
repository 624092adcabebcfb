package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func newJobTagCommand(s *streams) *cobra.Command {
	return group("tag", "Give versions of a job a name", newJobTagApplyCommand(s), newJobTagUnsetCommand(s))
}

type jobTagOptions struct {
	client      clientFlags
	name        string
	description string
	version     int64
}

func newJobTagApplyCommand(s *streams) *cobra.Command {
	var o jobTagOptions
	cmd := newJobTagged(&o, "apply [flags] JOB", "Give a version of a job a name", func(cmd *cobra.Command, args []string) error {
		return tagJob(cmd.Context(), o, args[0], s)
	})
	cmd.Long = `Give a version of a job a name, by which 'job revert' and 'job history -diff-tag'
know it. A version with a name is not forgotten when there are many newer ones.`
	cmd.Example = `  nomad-lite job tag apply -name golden -description "before the rewrite" web
  nomad-lite job tag apply -name golden -version 3 web`
	cmd.Flags().StringVar(&o.description, "description", "", "`text` about the version")
	cmd.Flags().Int64Var(&o.version, "version", -1, "number of the `version`; without it the current one")
	return cmd
}

func newJobTagUnsetCommand(s *streams) *cobra.Command {
	var o jobTagOptions
	cmd := newJobTagged(&o, "unset [flags] JOB", "Take a version's name away", func(cmd *cobra.Command, args []string) error {
		return untagJob(cmd.Context(), o, args[0], s)
	})
	cmd.Long = "Take a version's name away. The version stays, as long as any other would."
	cmd.Example = `  nomad-lite job tag unset -name golden web`
	return cmd
}

// newJobTagged returns a command that changes the tag of a job version.
func newJobTagged(o *jobTagOptions, use, short string, run func(*cobra.Command, []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:               use,
		Short:             short,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.name == "" {
				return usageError(cmd, errors.New("which tag? Add -name"))
			}
			return run(cmd, args)
		},
	}
	o.client.register(cmd)
	cmd.Flags().StringVar(&o.name, "name", "", "`name` of the tag")
	return cmd
}

func tagJob(ctx context.Context, o jobTagOptions, prefix string, s *streams) error {
	c, job, err := o.client.readJob(ctx, prefix, o.version)
	if err != nil {
		return err
	}
	id, version := valueOf(job.ID), valueOf(job.Version)
	if _, err := c.Jobs().TagVersion(id, version, o.name, o.description, write(ctx, valueOf(job.Namespace))); err != nil {
		return failed(fmt.Sprintf("tag version %d of job %q", version, id), err)
	}
	_, err = fmt.Fprintf(s.out, "Job version %d tagged with name %q\n", version, o.name)
	return err
}

func untagJob(ctx context.Context, o jobTagOptions, prefix string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, prefix, "")
	if err != nil {
		return err
	}
	if _, err := c.Jobs().UntagVersion(id, o.name, write(ctx, namespace)); err != nil {
		return failed(fmt.Sprintf("untag job %q", id), err)
	}
	_, err = fmt.Fprintf(s.out, "Tag %q removed from job %q\n", o.name, id)
	return err
}
