package job

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

func newTagCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("tag", "Tag versions of a job", newTagApplyCommand(s), newTagUnsetCommand(s))
}

type tagOptions struct {
	clientFlags       apiclient.Flags
	tagName           string
	description       string
	versionOrNegative int64
}

func newTagApplyCommand(s *cli.Streams) *cobra.Command {
	var o tagOptions
	cmd := newTagChangeCommand(&o, "apply [flags] JOB", "Tag a version of a job", func(cmd *cobra.Command, args []string) error {
		return tagJob(cmd.Context(), o, args[0], s)
	})
	cmd.Long = `Tag a version of a job with a name, by which 'job revert' and 'job history -diff-tag'
know it. A version with a name is not forgotten when there are many newer ones.`
	cmd.Example = `  nomad-lite job tag apply -name golden -description "before the rewrite" web
  nomad-lite job tag apply -name golden -version 3 web`
	cmd.Flags().StringVar(&o.description, "description", "", "`text` about the version")
	cmd.Flags().Int64Var(&o.versionOrNegative, "version", -1, "number of the `version`; without it the current one")
	return cmd
}

func newTagUnsetCommand(s *cli.Streams) *cobra.Command {
	var o tagOptions
	cmd := newTagChangeCommand(&o, "unset [flags] JOB", "Remove the tag of a version", func(cmd *cobra.Command, args []string) error {
		return untagJob(cmd.Context(), o, args[0], s)
	})
	cmd.Long = "Remove the tag of a version. The version is kept as long as other versions without a tag."
	cmd.Example = `  nomad-lite job tag unset -name golden web`
	return cmd
}

// newTagChangeCommand returns a command that changes the tag of a job version.
func newTagChangeCommand(o *tagOptions, use, short string, run func(*cobra.Command, []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:               use,
		Short:             short,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.tagName == "" {
				return cli.UsageError(cmd, errors.New("which tag? Add -name"))
			}
			return run(cmd, args)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringVar(&o.tagName, "name", "", "`name` of the tag")
	return cmd
}

func tagJob(ctx context.Context, o tagOptions, jobIDPrefix string, s *cli.Streams) error {
	c, job, err := findJobVersion(ctx, &o.clientFlags, jobIDPrefix, o.versionOrNegative)
	if err != nil {
		return err
	}
	id, version := pointer.Value(job.ID), pointer.Value(job.Version)
	if _, err := c.Jobs().TagVersion(id, version, o.tagName, o.description, apiclient.WriteOptions(ctx, pointer.Value(job.Namespace))); err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("tag version %d of job %q", version, id), err)
	}
	_, err = fmt.Fprintf(s.Out, "Job version %d tagged with name %q\n", version, o.tagName)
	return err
}

func untagJob(ctx context.Context, o tagOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	if _, err := c.Jobs().UntagVersion(id, o.tagName, apiclient.WriteOptions(ctx, namespace)); err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("untag job %q", id), err)
	}
	_, err = fmt.Fprintf(s.Out, "Tag %q removed from job %q\n", o.tagName, id)
	return err
}
