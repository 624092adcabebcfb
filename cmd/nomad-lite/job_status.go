package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const jobStatusHelp = `Show the jobs of an agent, or one job: what it is made of, what runs of it, its
latest deployment, and why something of it could not be placed.

The beginning of a job's id is enough, as long as no other begins so.`

type jobStatusOptions struct {
	client    clientFlags
	format    formatFlags
	short     bool
	evals     bool
	allAllocs bool
	verbose   bool
}

func newJobStatusCommand(s *streams) *cobra.Command {
	var o jobStatusOptions
	cmd := &cobra.Command{
		Use:   "status [flags] [JOB]",
		Short: "Show jobs, or one job",
		Long:  jobStatusHelp,
		Example: `  nomad-lite job status
  nomad-lite job status -evals -verbose web
  nomad-lite job status -t '{{range .}}{{println .Job.ID .Job.Status}}{{end}}'`,
		Args:              argCount(0, 1, "the id of a job, or nothing for all jobs"),
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client.client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return listJobs(cmd.Context(), o, c, s)
			}
			return showJob(cmd.Context(), o, c, args[0], s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.short, "short", false, "show only what the job is")
	cmd.Flags().BoolVar(&o.evals, "evals", false, "list the evaluations of the job")
	cmd.Flags().BoolVar(&o.allAllocs, "all-allocs", false, "list also allocations of an earlier job with this id")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids and times")
	return cmd
}

func listJobs(ctx context.Context, o jobStatusOptions, c *api.Client, s *streams) error {
	jobs, _, err := c.Jobs().List(query(ctx, ""))
	if err != nil {
		return failed("list jobs", err)
	}
	if o.format.wanted() {
		all := make([]*jobState, len(jobs))
		for i, j := range jobs {
			if all[i], err = readJob(ctx, c, j.ID, namespaceOf(j), o.allAllocs); err != nil {
				return err
			}
		}
		return o.format.print(s, all)
	}
	p := s.page()
	p.jobs(jobs, "No running jobs")
	return s.show(p)
}

// jobs adds a line for each job, or a line that there is none.
func (p *page) jobs(jobs []*api.JobListStub, nothing string) {
	wild := slices.ContainsFunc(jobs, func(j *api.JobListStub) bool { return namespaceOf(j) != namespaceOf(jobs[0]) })
	t := newTable("ID", "Type", "Priority", "Status", "Submit Date")
	if wild {
		t.head = append(t.head, "Namespace")
	}
	for _, j := range jobs {
		row := []any{j.ID, jobType(j), j.Priority, jobStatus(j.Status, j.Stop), date(j.SubmitTime)}
		if wild {
			row = append(row, namespaceOf(j))
		}
		t.row(row...)
	}
	p.tableOr(t, nothing)
}

func jobStatus(text string, stopped bool) coloredCell {
	if stopped {
		text += " (stopped)"
	}
	return statusCell(text)
}

// jobState is a job and the objects that belong to it.
type jobState struct {
	Job              *api.Job
	Summary          *api.JobSummary
	Allocations      []*api.AllocationListStub
	LatestDeployment *api.Deployment
	Evaluations      []*api.Evaluation
}

func readJob(ctx context.Context, c *api.Client, id, namespace string, allAllocs bool) (state *jobState, err error) {
	state = new(jobState)
	for _, part := range []struct {
		name string
		read func(q *api.QueryOptions) error
	}{
		{"", func(q *api.QueryOptions) error { state.Job, _, err = c.Jobs().Info(id, q); return err }},
		{"summary of ", func(q *api.QueryOptions) error { state.Summary, _, err = c.Jobs().Summary(id, q); return err }},
		{"allocations of ", func(q *api.QueryOptions) error {
			state.Allocations, _, err = c.Jobs().Allocations(id, allAllocs, q)
			return err
		}},
		{"deployment of ", func(q *api.QueryOptions) error {
			state.LatestDeployment, _, err = c.Jobs().LatestDeployment(id, q)
			return err
		}},
		{"evaluations of ", func(q *api.QueryOptions) error { state.Evaluations, _, err = c.Jobs().Evaluations(id, q); return err }},
	} {
		if err := part.read(query(ctx, namespace)); err != nil {
			return nil, failed(fmt.Sprintf("read %sjob %q", part.name, id), err)
		}
	}
	return state, nil
}

func showJob(ctx context.Context, o jobStatusOptions, c *api.Client, prefix string, s *streams) error {
	id, namespace, err := findJob(ctx, c, prefix, "")
	if err != nil {
		return err
	}
	if o.format.wanted() {
		state, err := readJob(ctx, c, id, namespace, o.allAllocs)
		if err != nil {
			return err
		}
		return o.format.print(s, []*jobState{state})
	}
	p := s.page()
	if o.short {
		job, _, err := c.Jobs().Info(id, query(ctx, namespace))
		if err != nil {
			return failed(fmt.Sprintf("read job %q", id), err)
		}
		p.job(job)
		return s.show(p)
	}
	state, err := readJob(ctx, c, id, namespace, o.allAllocs)
	if err != nil {
		return err
	}
	p.job(state.Job)
	switch job := state.Job; {
	case job.Periodic != nil:
		err = p.children(ctx, c, state, "/periodic-", "Previously Launched Jobs")
	case job.ParameterizedJob != nil && !job.Dispatched:
		p.parameterized(job.ParameterizedJob)
		err = p.children(ctx, c, state, "/dispatch-", "Dispatched Jobs")
	default:
		p.runningJob(ctx, c, state, o)
	}
	if err != nil {
		return err
	}
	return s.show(p)
}

// job adds the fields of a job.
func (p *page) job(j *api.Job) {
	all := pairs{
		{"ID", valueOf(j.ID)},
		{"Name", valueOf(j.Name)},
		{"Submit Date", date(valueOf(j.SubmitTime))},
		{"Type", valueOf(j.Type)},
		{"Priority", valueOf(j.Priority)},
		{"Version", valueOf(j.Version)},
		{"Datacenters", strings.Join(j.Datacenters, ",")},
		{"Namespace", valueOf(j.Namespace)},
		{"Node Pool", valueOf(j.NodePool)},
		{"Status", jobStatus(valueOf(j.Status), valueOf(j.Stop))},
		{"Periodic", j.Periodic != nil},
		{"Parameterized", j.ParameterizedJob != nil},
	}
	if j.VersionTag != nil {
		all = append(all, [2]any{"Version Tag", j.VersionTag.Name})
	}
	if j.Periodic != nil && !valueOf(j.Stop) {
		all = append(all, [2]any{"Next Periodic Launch", nextLaunch(j.Periodic)})
	}
	p.pairs(all)
	if j.UI != nil && j.UI.Description != "" {
		p.line("")
		p.line("%s", j.UI.Description)
	}
}

func nextLaunch(periodic *api.PeriodicConfig) string {
	periodic.Canonicalize()
	if !*periodic.Enabled {
		return "none: it is not enabled"
	}
	zone, err := periodic.GetLocation()
	if err != nil {
		return err.Error()
	}
	now := time.Now().In(zone)
	next, err := periodic.Next(now)
	switch {
	case err != nil:
		return err.Error()
	case next.IsZero():
		return "none"
	}
	return fmt.Sprintf("%s (%s)", next.Format(time.RFC3339), ago(now.Sub(next)))
}

func (p *page) parameterized(config *api.ParameterizedJobConfig) {
	p.section("Parameterized Job")
	p.pairs(pairs{
		{"Payload", cmp.Or(config.Payload, "optional")},
		{"Required Metadata", strings.Join(config.MetaRequired, ", ")},
		{"Optional Metadata", strings.Join(config.MetaOptional, ", ")},
	})
}

// children adds the jobs that were created from a job.
func (p *page) children(ctx context.Context, c *api.Client, state *jobState, infix, title string) error {
	if state.Summary != nil && state.Summary.Children != nil {
		p.section("Children Job Summary")
		t := newTable("Pending", "Running", "Dead")
		t.row(state.Summary.Children.Pending, state.Summary.Children.Running, state.Summary.Children.Dead)
		p.table(t)
	}
	q := query(ctx, valueOf(state.Job.Namespace))
	q.Prefix = valueOf(state.Job.ID) + infix
	jobs, _, err := c.Jobs().List(q)
	if err != nil {
		return failed("list jobs", err)
	}
	p.section(title)
	if len(jobs) == 0 {
		p.line("None so far")
		return nil
	}
	t := newTable("ID", "Status", "Submit Date")
	for _, j := range jobs {
		t.row(j.ID, jobStatus(j.Status, j.Stop), date(j.SubmitTime))
	}
	p.table(t)
	return nil
}

// runningJob adds the groups, deployment and allocations of a job.
func (p *page) runningJob(ctx context.Context, c *api.Client, state *jobState, o jobStatusOptions) {
	if state.Summary != nil {
		p.section("Summary")
		t := newTable("Task Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown")
		for _, name := range slices.Sorted(maps.Keys(state.Summary.Summary)) {
			g := state.Summary.Summary[name]
			t.row(name, g.Queued, g.Starting, g.Running, g.Failed, g.Complete, g.Lost, g.Unknown)
		}
		p.table(t)
	}
	evals := slices.Clone(state.Evaluations)
	slices.SortStableFunc(evals, func(a, b *api.Evaluation) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	if o.evals && len(evals) > 0 {
		p.section("Evaluations")
		p.evaluations(evals, o.verbose)
	}
	for _, e := range evals {
		if len(e.FailedTGAllocs) > 0 && e.Status != api.EvalStatusComplete {
			p.section("Placement Failure")
			p.shortages("", e.FailedTGAllocs)
			break
		}
	}
	p.reschedules(ctx, c, state, o.verbose)
	if d := state.LatestDeployment; d != nil && d.ID != "" {
		p.section("Latest Deployment")
		p.pairs(pairs{{"ID", shortID(d.ID, o.verbose)}, {"Status", statusCell(d.Status)}, {"Description", d.StatusDescription}})
		if len(d.TaskGroups) > 0 {
			p.section("Deployed")
			p.deployed(d.TaskGroups)
		}
	}
	if t := actionTable(state.Job); len(t.rows) > 0 {
		p.section("Actions Available")
		p.table(t)
	}
	p.section("Allocations")
	p.allocations(state.Allocations, o.verbose)
}

// reschedules adds the times at which failed allocations will be placed again.
func (p *page) reschedules(ctx context.Context, c *api.Client, state *jobState, verbose bool) {
	t := newTable("Task Group", "Reschedule Policy", "Eval ID", "Eval Time")
	groups := make(map[string]*api.TaskGroup)
	for _, g := range state.Job.TaskGroups {
		if g != nil {
			groups[valueOf(g.Name)] = g
		}
	}
	for _, a := range state.Allocations {
		if a.FollowupEvalID == "" || a.NextAllocation != "" {
			continue
		}
		eval, _, err := c.Evaluations().Info(a.FollowupEvalID, query(ctx, a.Namespace))
		if err != nil || eval.Status != api.EvalStatusPending || eval.WaitUntil.IsZero() {
			continue // the evaluation can be garbage collected by now
		}
		policy := ""
		if g := groups[a.TaskGroup]; g != nil && g.ReschedulePolicy != nil {
			policy = reschedulePolicy(g.ReschedulePolicy)
		}
		t.row(a.TaskGroup, policy, shortID(eval.ID, verbose), ago(time.Since(eval.WaitUntil)))
	}
	if len(t.rows) > 0 {
		p.section("Future Rescheduling Attempts")
		p.table(t)
	}
}

func reschedulePolicy(r *api.ReschedulePolicy) string {
	if valueOf(r.Unlimited) {
		return fmt.Sprintf("unlimited with %s delay, max_delay = %s", valueOf(r.DelayFunction), valueOf(r.MaxDelay))
	}
	return fmt.Sprintf("%d in %s with %s delay, max_delay = %s", valueOf(r.Attempts), valueOf(r.Interval), valueOf(r.DelayFunction), valueOf(r.MaxDelay))
}

// actionTable lists the actions of a job's tasks.
func actionTable(job *api.Job) *table {
	t := newTable("Action Name", "Task Group", "Task")
	eachTask(job, func(group *api.TaskGroup, task *api.Task) {
		for _, action := range task.Actions {
			if action != nil {
				t.row(action.Name, valueOf(group.Name), task.Name)
			}
		}
	})
	return t
}
