package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

type historyOptions struct {
	clientFlags           apiclient.Flags
	formatFlags           output.FormatFlags
	showDiffs             bool
	showFullJob           bool
	onlyVersionOrNegative int64
	diffVersionOrNegative int64
	diffTag               string
}

func newHistoryCommand(s *cli.Streams) *cobra.Command {
	var o historyOptions
	cmd := &cobra.Command{
		Use:   "history [flags] JOB",
		Short: "List the versions of a job and their differences",
		Long: `List the versions of a job, the newest first, and their differences.

'job revert' goes back to one of them.`,
		Example: `  nomad-lite job history -p web
  nomad-lite job history -version 3 -full web
  nomad-lite job history -diff-tag golden web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.diffVersionOrNegative >= 0 && o.diffTag != "" {
				return cli.UsageError(cmd, errors.New("-diff-version and -diff-tag exclude each other"))
			}
			return showJobHistory(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVarP(&o.showDiffs, "p", "p", false, "show what each version has changed")
	cmd.Flags().BoolVar(&o.showFullJob, "full", false, "show the whole job of each version")
	cmd.Flags().Int64Var(&o.onlyVersionOrNegative, "version", -1, "show only this `version`")
	cmd.Flags().Int64Var(&o.diffVersionOrNegative, "diff-version", -1, "compare each version with this `version`")
	cmd.Flags().StringVar(&o.diffTag, "diff-tag", "", "compare each version with the version that has this `tag`")
	return cmd
}

// jobWithDiff is a version of a job with its changes from the previous version, or from the version that a flag
// selects.
type jobWithDiff struct {
	*api.Job
	Diff   *api.JobDiff
	author versionAuthor
}

// versionAuthor is the ACL token with which a version was made. It is zero if there was none, or if the agent is not nomad-lite.
type versionAuthor struct{ AccessorID, TokenName string }

func showJobHistory(ctx context.Context, o historyOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	options := &api.VersionsOptions{Diffs: o.showDiffs || o.diffVersionOrNegative >= 0 || o.diffTag != "", DiffTag: o.diffTag}
	if o.diffVersionOrNegative >= 0 {
		options.DiffVersion = new(uint64(o.diffVersionOrNegative))
	}
	reply, err := readVersions(c, id, options, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read versions of job %q", id), err)
	}
	var versions []jobWithDiff
	for i, job := range reply.Versions {
		v := jobWithDiff{Job: job, author: reply.Authors[pointer.Value(pointer.Value(job).Version)]}
		if i < len(reply.Diffs) {
			v.Diff = reply.Diffs[i]
		}
		if job != nil && (o.onlyVersionOrNegative < 0 || pointer.Value(job.Version) == uint64(o.onlyVersionOrNegative)) {
			versions = append(versions, v)
		}
	}
	if len(versions) == 0 && o.onlyVersionOrNegative >= 0 {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Error printing job history for non-existing job or job version: job %q has no version %d\nList its versions: nomad-lite job history %s", id, o.onlyVersionOrNegative, id)
	}
	if o.formatFlags.IsSet() {
		if options.Diffs {
			return o.formatFlags.Print(s, versions)
		}
		plain := make([]*api.Job, len(versions))
		for i, v := range versions {
			plain[i] = v.Job
		}
		return o.formatFlags.Print(s, plain)
	}
	p := output.NewPage(s)
	for i, v := range versions {
		if i > 0 {
			p.AddLine("")
		}
		if err := o.printJobVersion(p, v); err != nil {
			return err
		}
	}
	return output.PrintPage(s, p)
}

// versionsReply is the reply to a request for the versions of a job.
type versionsReply struct {
	Versions []*api.Job
	Diffs    []*api.JobDiff
	Authors  map[uint64]versionAuthor // by version
}

// readVersions does what the client of Nomad's API does, which does not know authors.
func readVersions(c *api.Client, id string, o *api.VersionsOptions, q *api.QueryOptions) (reply versionsReply, err error) {
	q.Params = map[string]string{"diffs": strconv.FormatBool(o.Diffs), "diff_tag": o.DiffTag}
	if o.DiffVersion != nil {
		q.Params["diff_version"] = strconv.FormatUint(*o.DiffVersion, 10)
	}
	_, err = c.Raw().Query("/v1/job/"+url.PathEscape(id)+"/versions", &reply, q)
	return reply, err
}

// printJobVersion adds a version of a job to the page: its fields and, depending on the flags, its diff or the whole
// job as JSON.
func (o historyOptions) printJobVersion(p *output.Page, version jobWithDiff) error {
	j := version.Job
	all := output.Pairs{
		{"Version", pointer.Value(j.Version)},
		{"Stable", pointer.Value(j.Stable)},
		{"Submit Date", output.FormatDate(pointer.Value(j.SubmitTime))},
	}
	if a := version.author; a.AccessorID != "" {
		all = append(all, [2]any{"Submitted By", fmt.Sprintf("%s (token %s)", cmp.Or(a.TokenName, "<unnamed>"), a.AccessorID)})
	}
	if t := j.VersionTag; t != nil {
		all = append(all, [2]any{"Tag Name", t.Name})
		if t.Description != "" {
			all = append(all, [2]any{"Tag Description", t.Description})
		}
	}
	if !o.showFullJob {
		if version.Diff == nil {
			p.AddPairs(all)
			return nil
		}
		p.AddPairs(append(all, [2]any{"Diff", output.BlankCell}))
		diffPage{p, false}.writeJob(version.Diff)
		return nil
	}
	text, err := output.FormatJSON(j)
	if err != nil {
		return err
	}
	p.AddPairs(append(all, [2]any{"Full", "JSON Job:"}))
	p.AddSanitizedLines(text)
	return nil
}
