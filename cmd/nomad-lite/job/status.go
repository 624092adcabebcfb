package job

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

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/ports"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

const statusHelp = `Show the jobs of an agent and which of them need attention, or one job: its
health, its groups, its allocations, its latest deployment, and its placement
failures.

The health of a job is one word: failing, failed, blocked, degraded, deploying,
waiting, running, complete or stopped. Its status is Nomad's.

The beginning of a job's id is enough, as long as no other begins so.`

type statusOptions struct {
	clientFlags              apiclient.Flags
	formatFlags              output.FormatFlags
	short                    bool
	showEvals                bool
	includeEarlierSameIDJobs bool
	verbose                  bool
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [flags] [JOB]",
		Short: "Show jobs, or one job",
		Long:  statusHelp,
		Example: `  nomad-lite job status
  nomad-lite job status -evals -verbose web
  nomad-lite job status -t '{{range .}}{{println .Job.ID .Job.Status}}{{end}}'`,
		Args:              cli.RequireArgCount(0, 1, "the id of a job, or nothing for all jobs"),
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.clientFlags.Client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return listJobs(cmd.Context(), o, c, s)
			}
			return showJob(cmd.Context(), o, c, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.short, "short", false, "show only what the job is")
	cmd.Flags().BoolVar(&o.showEvals, "evals", false, "list the evaluations of the job")
	cmd.Flags().BoolVar(&o.includeEarlierSameIDJobs, "all-allocs", false, "list also allocations of an earlier job with this id")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids and times")
	return cmd
}

func listJobs(ctx context.Context, o statusOptions, c *api.Client, s *cli.Streams) error {
	jobs, _, err := c.Jobs().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list jobs", err)
	}
	if o.formatFlags.IsSet() {
		all := make([]*jobWithDetails, len(jobs))
		for i, j := range jobs {
			if all[i], err = readJobDetails(ctx, c, j.ID, apiclient.JobNamespace(j), o.includeEarlierSameIDJobs); err != nil {
				return err
			}
		}
		return o.formatFlags.Print(s, all)
	}
	tables.WarnOfConditions(s, apiclient.ReadConditions(ctx, c))
	p := output.NewPage(s)
	tables.PrintJobs(p, jobs, o.clientFlags.ReadsAllNamespaces(), "No running jobs")
	tables.PrintJobsThatNeedAttention(p, apiclient.ReadHealthOfAllJobs(ctx, c), o.clientFlags.ReadsAllNamespaces())
	return output.PrintPage(s, p)
}

// jobWithDetails is a job with its health, summary, allocations, latest deployment and evaluations. It is the output of -json.
type jobWithDetails struct {
	Job              *api.Job
	Health           *apiclient.JobHealth `json:",omitempty"` // nil if the agent does not report it
	Summary          *api.JobSummary
	Allocations      []*api.AllocationListStub
	LatestDeployment *api.Deployment
	Evaluations      []*api.Evaluation
}

func readJobDetails(ctx context.Context, c *api.Client, id, namespace string, includeEarlierSameIDJobs bool) (details *jobWithDetails, err error) {
	details = &jobWithDetails{Health: apiclient.ReadJobHealth(ctx, c, id, namespace)}
	for _, part := range []struct {
		name string
		read func(q *api.QueryOptions) error
	}{
		{"", func(q *api.QueryOptions) error { details.Job, _, err = c.Jobs().Info(id, q); return err }},
		{"summary of ", func(q *api.QueryOptions) error { details.Summary, _, err = c.Jobs().Summary(id, q); return err }},
		{"allocations of ", func(q *api.QueryOptions) error {
			details.Allocations, _, err = c.Jobs().Allocations(id, includeEarlierSameIDJobs, q)
			return err
		}},
		{"deployment of ", func(q *api.QueryOptions) error {
			details.LatestDeployment, _, err = c.Jobs().LatestDeployment(id, q)
			return err
		}},
		{"evaluations of ", func(q *api.QueryOptions) error { details.Evaluations, _, err = c.Jobs().Evaluations(id, q); return err }},
	} {
		if err := part.read(apiclient.QueryOptions(ctx, namespace)); err != nil {
			return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read %sjob %q", part.name, id), err)
		}
	}
	return details, nil
}

func showJob(ctx context.Context, o statusOptions, c *api.Client, jobIDPrefix string, s *cli.Streams) error {
	id, namespace, err := apiclient.FindJob(ctx, c, jobIDPrefix, "")
	if err != nil {
		return err
	}
	cli.SetPageForUIFlag(ctx, cli.JobWebPagePath(id, namespace))
	if o.formatFlags.IsSet() {
		state, err := readJobDetails(ctx, c, id, namespace, o.includeEarlierSameIDJobs)
		if err != nil {
			return err
		}
		return o.formatFlags.Print(s, []*jobWithDetails{state})
	}
	p := output.NewPage(s)
	if o.short {
		job, _, err := c.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job %q", id), err)
		}
		printJobFields(p, job, nil)
		return output.PrintPage(s, p)
	}
	state, err := readJobDetails(ctx, c, id, namespace, o.includeEarlierSameIDJobs)
	if err != nil {
		return err
	}
	printJobFields(p, state.Job, state.Health)
	switch job := state.Job; {
	case job.Periodic != nil:
		err = printChildJobs(ctx, p, c, state, periodicChildren)
	case job.ParameterizedJob != nil && !job.Dispatched:
		printParameterizedConfig(p, job.ParameterizedJob)
		err = printChildJobs(ctx, p, c, state, dispatchedChildren)
	default:
		printGroupsAndAllocs(ctx, p, c, state, o)
	}
	if err != nil {
		return err
	}
	return output.PrintPage(s, p)
}

// printJobFields adds the fields of a job to the page. health can be nil.
func printJobFields(p *output.Page, j *api.Job, health *apiclient.JobHealth) {
	all := output.Pairs{
		{"ID", pointer.Value(j.ID)},
		{"Name", pointer.Value(j.Name)},
		{"Submit Date", output.FormatDate(pointer.Value(j.SubmitTime))},
		{"Type", pointer.Value(j.Type)},
		{"Priority", pointer.Value(j.Priority)},
		{"Datacenters", strings.Join(j.Datacenters, ",")},
		{"Namespace", pointer.Value(j.Namespace)},
		{"Node Pool", pointer.Value(j.NodePool)},
		{"Status", tables.JobStatusCell(pointer.Value(j.Status), pointer.Value(j.Stop))},
		{"Periodic", j.Periodic != nil},
		{"Parameterized", j.ParameterizedJob != nil && !j.Dispatched},
	}
	if j.Periodic != nil && !pointer.Value(j.Stop) {
		all = append(all, [2]any{"Next Periodic Launch", formatNextLaunch(j.Periodic)})
	}
	all = append(all, [2]any{"Version", pointer.Value(j.Version)})
	if j.VersionTag != nil {
		all = append(all, [2]any{"Version Tag", j.VersionTag.Name})
	}
	if health != nil {
		all = append(all, [2]any{"Health", tables.HealthCell(health.Health)})
		if text := health.Sentence(); text != "" {
			all = append(all, [2]any{"Reason", text})
		}
		if d := health.FailedDeployment; d != nil {
			all = append(all, [2]any{"Failed Deployment", d.String()})
		}
	}
	p.AddPairs(all)
	if j.UI != nil && j.UI.Description != "" {
		p.AddLine("")
		p.AddLine("%s", j.UI.Description)
	}
}

func formatNextLaunch(periodic *api.PeriodicConfig) string {
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
	return fmt.Sprintf("%s (%s)", next.Format(time.RFC3339), output.FormatRelativeTime(now.Sub(next)))
}

func printParameterizedConfig(p *output.Page, config *api.ParameterizedJobConfig) {
	p.AddSectionTitle("Parameterized Job")
	p.AddPairs(output.Pairs{
		{"Payload", cmp.Or(config.Payload, "optional")},
		{"Required Metadata", strings.Join(config.MetaRequired, ", ")},
		{"Optional Metadata", strings.Join(config.MetaOptional, ", ")},
	})
}

// childJobKind describes the children of periodic jobs, or those of parameterized jobs, for the output.
type childJobKind struct {
	idInfix                 string // text that follows the id of the parent in the id of a child
	summaryTitle, listTitle string
	emptyListText           string // text that is shown instead of an empty list
}

var (
	periodicChildren   = childJobKind{"/periodic-", "Children Job Summary", "Previously Launched Jobs", "No instances of periodic job found"}
	dispatchedChildren = childJobKind{"/dispatch-", "Parameterized Job Summary", "Dispatched Jobs", "No dispatched instances of parameterized job found"}
)

// printChildJobs adds a summary and a list of the children of a job to the page.
func printChildJobs(ctx context.Context, p *output.Page, c *api.Client, details *jobWithDetails, kind childJobKind) error {
	if details.Summary != nil && details.Summary.Children != nil {
		p.AddSectionTitle(kind.summaryTitle)
		t := output.NewTable("Pending", "Running", "Dead")
		t.AddRow(details.Summary.Children.Pending, details.Summary.Children.Running, details.Summary.Children.Dead)
		p.AddTable(t)
	}
	q := apiclient.QueryOptions(ctx, pointer.Value(details.Job.Namespace))
	q.Prefix = pointer.Value(details.Job.ID) + kind.idInfix
	jobs, _, err := c.Jobs().List(q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list jobs", err)
	}
	p.AddSectionTitle(kind.listTitle)
	t := output.NewTable("ID", "Status", "Submit Date")
	for _, j := range jobs {
		t.AddRow(j.ID, tables.JobStatusCell(j.Status, j.Stop), output.FormatDate(j.SubmitTime))
	}
	p.AddTableOrMessage(t, kind.emptyListText)
	return nil
}

// printGroupsAndAllocs adds the state of a job without children to the page: groups, evaluations, deployment,
// allocations, and why tasks do not run.
func printGroupsAndAllocs(ctx context.Context, p *output.Page, c *api.Client, details *jobWithDetails, o statusOptions) {
	if details.Summary != nil {
		p.AddSectionTitle("Summary")
		t := output.NewTable("Task Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown")
		for _, name := range slices.Sorted(maps.Keys(details.Summary.Summary)) {
			g := details.Summary.Summary[name]
			t.AddRow(name, g.Queued, g.Starting, g.Running, g.Failed, g.Complete, g.Lost, g.Unknown)
		}
		p.AddTable(t)
	}
	evals := slices.Clone(details.Evaluations)
	slices.SortStableFunc(evals, func(a, b *api.Evaluation) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	if (o.showEvals || o.verbose) && len(evals) > 0 {
		p.AddSectionTitle("Evaluations")
		tables.PrintEvaluations(p, evals, o.verbose)
	}
	printReschedules(ctx, p, c, details, o.verbose)
	taskreason.PrintPlacementFailure(ctx, p, c, details.Job, evals)
	if d := details.LatestDeployment; d != nil && d.ID != "" {
		p.AddSectionTitle("Latest Deployment")
		all := output.Pairs{{"ID", output.ShortIDUnlessVerbose(d.ID, o.verbose)}, {"Status", output.StatusCell(d.Status)}, {"Description", d.StatusDescription}}
		if remedy := reason.RemedyForFailedDeployment(d, details.Job); remedy != "" && details.Health == nil { // the health has the remedy
			all = append(all, [2]any{"Remedy", remedy})
		}
		p.AddPairs(all)
		if len(d.TaskGroups) > 0 {
			p.AddSectionTitle("Deployed")
			tables.PrintDeployedGroups(p, d.TaskGroups)
		}
	}
	if t := actionTable(details.Job); len(t.Rows) > 0 {
		p.AddSectionTitle("Actions")
		p.AddTable(t)
	}
	p.AddSectionTitle("Allocations")
	tables.PrintAllocationsWithPorts(p, details.Allocations, readPortsByAllocID(ctx, c, details), o.verbose)
	taskreason.PrintTasksNotRunningAndChecks(ctx, p, c, details.Job, details.Allocations, time.Now(), o.verbose)
}

// readPortsByAllocID returns the ports of the pending and running allocations of a job, as text by allocation id. It
// returns nil if the request fails, because the rest of the status can be shown without ports.
func readPortsByAllocID(ctx context.Context, c *api.Client, details *jobWithDetails) map[string]string {
	if !slices.ContainsFunc(details.Allocations, isPendingOrRunning) {
		return nil
	}
	q := apiclient.QueryOptions(ctx, pointer.Value(details.Job.Namespace))
	q.Params = map[string]string{"resources": "true", "task_states": "false"}
	q.Filter = fmt.Sprintf("JobID == %q", pointer.Value(details.Job.ID))
	allocs, _, err := c.Allocations().List(q)
	if err != nil {
		return nil
	}
	byID := map[string]string{}
	for _, a := range allocs {
		if text := ports.FormatAllocationPorts(a.AllocatedResources, apiclient.FindTaskGroup(details.Job, a.TaskGroup)); text != "" && isPendingOrRunning(a) {
			byID[a.ID] = text
		}
	}
	return byID
}

func isPendingOrRunning(a *api.AllocationListStub) bool {
	return a.ClientStatus == api.AllocClientStatusPending || a.ClientStatus == api.AllocClientStatusRunning
}

// printReschedules adds a table to the page, with the times at which failed allocations will be rescheduled.
func printReschedules(ctx context.Context, p *output.Page, c *api.Client, details *jobWithDetails, verbose bool) {
	t := output.NewTable("Task Group", "Reschedule Policy", "Eval ID", "Eval Time")
	for _, a := range details.Allocations {
		if a.FollowupEvalID == "" || a.NextAllocation != "" {
			continue
		}
		eval, _, err := c.Evaluations().Info(a.FollowupEvalID, apiclient.QueryOptions(ctx, a.Namespace))
		if err != nil || eval.Status != api.EvalStatusPending || eval.WaitUntil.IsZero() {
			continue // the evaluation can be garbage collected by now
		}
		policy := ""
		if g := apiclient.FindTaskGroup(details.Job, a.TaskGroup); g != nil && g.ReschedulePolicy != nil {
			policy = formatReschedulePolicy(g.ReschedulePolicy)
		}
		t.AddRow(a.TaskGroup, policy, output.ShortIDUnlessVerbose(eval.ID, verbose), output.FormatRelativeTime(time.Since(eval.WaitUntil)))
	}
	if len(t.Rows) > 0 {
		p.AddSectionTitle("Future Rescheduling Attempts")
		p.AddTable(t)
	}
}

func formatReschedulePolicy(r *api.ReschedulePolicy) string {
	if pointer.Value(r.Unlimited) {
		return fmt.Sprintf("unlimited with %s delay, max_delay = %s", pointer.Value(r.DelayFunction), pointer.Value(r.MaxDelay))
	}
	return fmt.Sprintf("%d in %s with %s delay, max_delay = %s", pointer.Value(r.Attempts), pointer.Value(r.Interval), pointer.Value(r.DelayFunction), pointer.Value(r.MaxDelay))
}

// actionTable returns a table of the actions of a job's tasks.
func actionTable(job *api.Job) *output.Table {
	t := output.NewTable("Action Name", "Task Group", "Task")
	apiclient.ForEachTask(job, func(group *api.TaskGroup, task *api.Task) {
		for _, action := range task.Actions {
			if action != nil {
				t.AddRow(action.Name, pointer.Value(group.Name), task.Name)
			}
		}
	})
	return t
}
