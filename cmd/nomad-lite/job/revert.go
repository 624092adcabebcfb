package job

import (
	"context"
	"fmt"
	"strconv"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

type revertOptions struct {
	clientFlags  apiclient.Flags
	monitorFlags monitor.Flags
}

func newRevertCommand(s *cli.Streams) *cobra.Command {
	var o revertOptions
	cmd := &cobra.Command{
		Use:   "revert [flags] JOB VERSION",
		Short: "Revert a job to an earlier version",
		Long: `Revert a job to an earlier version, given by its number or its tag. The agent
registers it as a new version.

Exit codes: as for 'job run'.`,
		Example: `  nomad-lite job revert web 3
  nomad-lite job revert web golden`,
		Args:              cli.RequireArgCount(2, 2, "two arguments: the id of a job, and a version or a tag"),
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs(""), completeJobVersions(&o.clientFlags)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return revertJob(cmd.Context(), o, args[0], args[1], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	return cmd
}

func revertJob(ctx context.Context, o revertOptions, jobIDPrefix, versionOrTag string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	version, err := strconv.ParseUint(versionOrTag, 10, 64)
	if err != nil {
		if version, err = findTaggedVersion(ctx, c, id, namespace, versionOrTag); err != nil {
			return err
		}
	}
	out, _, err := c.Jobs().Revert(id, version, nil, apiclient.WriteOptions(ctx, namespace), "", "")
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("revert job %q to version %d", id, version), err)
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, namespace, out.EvalID)
}

// findTaggedVersion returns the number of the job version that has the tag.
func findTaggedVersion(ctx context.Context, c *api.Client, id, namespace, tag string) (uint64, error) {
	versions, _, _, err := c.Jobs().Versions(id, false, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return 0, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read versions of job %q", id), err)
	}
	for _, job := range versions {
		if job != nil && job.VersionTag != nil && job.VersionTag.Name == tag {
			return pointer.Value(job.Version), nil
		}
	}
	return 0, fmt.Errorf("job %q has no version with the tag %q, and it is not a number\nSee the versions: nomad-lite job history %s", id, tag, id)
}

// completeJobVersions completes the versions of the job in the first argument.
func completeJobVersions(f *apiclient.Flags) cli.Completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) (numbers []string, err error) {
			versions, _, _, err := c.Jobs().Versions(args[0], false, apiclient.QueryOptions(ctx, ""))
			for _, job := range versions {
				if job != nil {
					numbers = append(numbers, cobra.CompletionWithDesc(fmt.Sprint(pointer.Value(job.Version)), output.FormatDate(pointer.Value(job.SubmitTime))))
				}
			}
			return numbers, err
		})
	}
}
