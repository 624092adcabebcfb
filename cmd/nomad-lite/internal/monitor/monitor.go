package monitor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// Flags are Nomad's flags that select whether and how a command follows the evaluation of its change.
type Flags struct {
	Detach  bool
	Verbose bool
}

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.Detach, "detach", false, "do not watch: print the id of the evaluation and return")
	f.registerVerbose(cmd)
}

func (f *Flags) registerVerbose(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.Verbose, "verbose", false, "print whole ids, and more about allocations")
}

// WatchEvaluationOrPrintID follows an evaluation and its deployment, or with -detach prints the evaluation's ID. If
// evalID is empty, as for a periodic or parameterized job, it does nothing.
func (f *Flags) WatchEvaluationOrPrintID(ctx context.Context, s *cli.Streams, c *api.Client, namespace, evalID string) error {
	if evalID == "" {
		return nil
	}
	if f.Detach {
		_, err := fmt.Fprintln(s.Out, "Evaluation ID:", evalID)
		return err
	}
	return New(s, c, namespace, f.Verbose).WatchEvaluationAndDeployment(ctx, evalID)
}

// Monitor follows an evaluation until the evaluation is complete, as Nomad's command line does. If the evaluation has a
// deployment, Monitor follows the deployment to its end.
type Monitor struct {
	client     *api.Client
	streams    *cli.Streams
	namespace  string
	verbose    bool
	liveScreen *terminal.LiveScreen // nil unless standard output is a terminal
}

// New returns a monitor that prints to the standard output of a command.
func New(s *cli.Streams, c *api.Client, namespace string, verbose bool) *Monitor {
	m := &Monitor{client: c, streams: s, namespace: namespace, verbose: verbose}
	if screen := terminal.NewLiveScreenOrNil(s.Out, s.Err); screen != nil && terminal.SameFile(screen.Output, s.Out) {
		m.liveScreen = screen
	}
	return m
}

// printPageWithLiveText writes a page. On a terminal, liveText is drawn below the page and stays there until the next
// call.
func (m *Monitor) printPageWithLiveText(p *output.Page, liveText string) error {
	if m.liveScreen == nil {
		return output.PrintPage(m.streams, p)
	}
	return m.liveScreen.WriteAboveLiveLines([]byte(p.Text.String()), func(_, rows int) []string {
		lines := strings.Split(strings.TrimSuffix(liveText, "\n"), "\n")
		if liveText == "" || len(lines) >= rows {
			return nil
		}
		return lines
	})
}

func (m *Monitor) newPage() *output.Page { return output.NewPage(m.streams) }

func (m *Monitor) formatID(id string) string { return output.ShortIDUnlessVerbose(id, m.verbose) }

// WatchEvaluationAndDeployment follows an evaluation and its deployment. It returns an error with the exit code: 2
// when an allocation could not be placed, 1 when a deployment has failed. A deployment that had failed before counts
// only if the job does not work by now.
func (m *Monitor) WatchEvaluationAndDeployment(ctx context.Context, id string) error {
	deploymentID, err := m.watchEvaluationUntilProcessed(ctx, id)
	if deploymentID == "" {
		return err
	}
	return m.watchDeployment(ctx, deploymentID, true)
}

// watchEvaluationUntilProcessed follows an evaluation until the scheduler has processed it, and returns the ID of its
// deployment. The error has the exit code 2 when an allocation could not be placed.
func (m *Monitor) watchEvaluationUntilProcessed(ctx context.Context, id string) (deploymentID string, err error) {
	p := m.newPage()
	p.AddTimedHeading("Monitoring evaluation %q", m.formatID(id))
	seen := make(map[string]string) // allocation ID -> client status
	q, triggerPrinted, status := apiclient.QueryOptions(ctx, m.namespace), false, api.EvalStatusPending
	deployment := ""
	for {
		eval, meta, err := m.client.Evaluations().Info(id, q)
		if err != nil {
			return "", apiclient.WrapErrorWithAdvice(fmt.Sprintf("read evaluation %q", id), err)
		}
		switch {
		case triggerPrinted:
		case eval.JobID == "" && eval.NodeID != "":
			p.AddTimedDetailLine("Evaluation triggered by node %q", m.formatID(eval.NodeID))
		default:
			p.AddTimedDetailLine("Evaluation triggered by job %q", eval.JobID)
		}
		triggerPrinted = true
		if deployment == "" && eval.DeploymentID != "" {
			deployment = eval.DeploymentID
			p.AddTimedDetailLine("Evaluation within deployment: %q", m.formatID(deployment))
		}
		allocs, _, err := m.client.Evaluations().Allocations(eval.ID, apiclient.QueryOptions(ctx, m.namespace))
		if err != nil {
			return "", apiclient.WrapErrorWithAdvice(fmt.Sprintf("read allocations of evaluation %q", m.formatID(eval.ID)), err)
		}
		slices.Reverse(allocs) // so that the lines of the newest allocations come first
		m.addAllocChanges(p, allocs, eval.CreateIndex, seen)
		if eval.Status != status {
			p.AddTimedDetailLine("Evaluation status changed: %q -> %q", status, output.StatusCell(eval.Status))
			status = eval.Status
		}
		switch eval.Status {
		case api.EvalStatusComplete, api.EvalStatusFailed, api.EvalStatusCancelled:
			return m.printEvalResultAndFollowNext(ctx, p, eval)
		case "":
			return "", fmt.Errorf("read evaluation %q: the answer does not say how it stands", id)
		}
		if err := m.printPageWithLiveText(p, ""); err != nil {
			return "", err
		}
		p = m.newPage()
		if err := MakeNextQueryBlockOrSleep(ctx, q, meta); err != nil {
			return "", err
		}
	}
}

// MakeNextQueryBlockOrSleep sets the index of the last response in q, so that the server blocks the next query until
// the index changes. If the server sends no index, MakeNextQueryBlockOrSleep sleeps for a second instead.
func MakeNextQueryBlockOrSleep(ctx context.Context, q *api.QueryOptions, meta *api.QueryMeta) error {
	if q.WaitIndex = meta.LastIndex; q.WaitIndex == 0 {
		return wait.Sleep(ctx, time.Second)
	}
	return nil
}

// addAllocChanges adds a line for each allocation whose client status is not the one in statusByAllocID, and updates
// statusByAllocID. Allocations that were created before evalCreateIndex are modified, not created.
func (m *Monitor) addAllocChanges(p *output.Page, allocs []*api.AllocationListStub, evalCreateIndex uint64, statusByAllocID map[string]string) {
	for _, a := range allocs {
		before, known := statusByAllocID[a.ID]
		statusByAllocID[a.ID] = a.ClientStatus
		switch {
		case !known && a.DesiredStatus != api.AllocDesiredStatusRun:
		case !known && a.CreateIndex >= evalCreateIndex:
			p.AddTimedDetailLine("Allocation %q created: node %q, group %q", m.formatID(a.ID), m.formatID(a.NodeID), a.TaskGroup)
		case !known:
			p.AddTimedDetailLine("Allocation %q modified: node %q, group %q", m.formatID(a.ID), m.formatID(a.NodeID), a.TaskGroup)
		case before != a.ClientStatus:
			p.AddTimedDetailLine("Allocation %q status changed: %q -> %q (%s)", m.formatID(a.ID), before, output.StatusCell(a.ClientStatus), a.ClientDescription)
		}
	}
}

func (m *Monitor) printEvalResultAndFollowNext(ctx context.Context, p *output.Page, eval *api.Evaluation) (deploymentID string, err error) {
	var exitErr error
	if len(eval.FailedTGAllocs) == 0 {
		p.AddTimedHeading("Evaluation %q finished with status %q", m.formatID(eval.ID), eval.Status)
	} else {
		exitErr = &cli.ExitError{Code: cli.NotPlaced.Number}
		p.AddTimedHeading("Evaluation %q finished with status %q but failed to place all allocations:", m.formatID(eval.ID), eval.Status)
		missingDrivers := reason.MissingDriverReasonsByGroup(apiclient.FindOnlyNode(ctx, m.client), m.readJobOrNil(ctx, eval.JobID))
		tables.PrintPlacementFailures(p, "    ", eval.FailedTGAllocs, missingDrivers)
		if eval.StatusDescription != "" {
			p.AddTimedDetailLine("%s", eval.StatusDescription)
		}
	}
	if eval.BlockedEval != "" {
		p.AddTimedDetailLine("Evaluation %q waiting for additional capacity to place remainder", m.formatID(eval.BlockedEval))
	}
	if eval.NextEval != "" {
		p.AddTimedDetailLine("Monitoring next evaluation %q in %s", m.formatID(eval.NextEval), eval.Wait)
		if err := m.printPageWithLiveText(p, ""); err != nil {
			return "", err
		}
		if err := wait.Sleep(ctx, eval.Wait); err != nil {
			return "", err
		}
		return m.watchEvaluationUntilProcessed(ctx, eval.NextEval)
	}
	if err := m.printPageWithLiveText(p, ""); err != nil {
		return "", err
	}
	return eval.DeploymentID, exitErr
}

// WatchDeploymentAndRollback follows a deployment to its end, and then the deployment that rolls it back, if there is
// one. On a terminal it redraws the deployment in place; elsewhere it prints a page for each change.
func (m *Monitor) WatchDeploymentAndRollback(ctx context.Context, id string) error {
	return m.watchDeployment(ctx, id, false)
}

// watchDeployment implements WatchDeploymentAndRollback. With ignoreEarlierFailure, it returns nil for a deployment that had failed
// before if its job works by now.
func (m *Monitor) watchDeployment(ctx context.Context, id string, ignoreEarlierFailure bool) error {
	p := m.newPage()
	p.AddTimedHeading("Monitoring deployment %q", m.formatID(id))
	q, shown, start := apiclient.QueryOptions(ctx, m.namespace), "", time.Now()
	q.WaitTime = time.Second // the tasks and the elapsed time change more often than the deployment
	for {
		d, meta, err := m.client.Deployments().Info(id, q)
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read deployment %q", id), err)
		}
		if ignoreEarlierFailure && d.Status == api.DeploymentStatusFailed {
			if taskreason.DescribeFailedDeployment(ctx, m.client, d, m.readJobOrNil(ctx, d.JobID)).Works {
				p.AddTimedDetailLine("The deployment of version %d had failed (%s); the job runs this version by now, and passes its checks", d.JobVersion, d.StatusDescription)
				return m.printPageWithLiveText(p, "")
			}
		}
		ignoreEarlierFailure = false
		if d.Status == api.DeploymentStatusFailed {
			// The log collector can write the last output of a task, which explains the failure, after the report of its exit. A
			// rollback has a deployment by then, too.
			if err := wait.Sleep(ctx, time.Second); err != nil {
				return err
			}
		}
		state := m.newPage()
		var now time.Time // without a terminal no countdown, which would print a new page each second
		if m.liveScreen != nil {
			now = time.Now()
		}
		state.AddIndented("    ", func(p *output.Page) { err = m.AddDeploymentState(ctx, p, d, now) })
		if err != nil {
			return err
		}
		ended := isDeploymentEndedOrBlocked(d.Status)
		live := ""
		switch {
		case m.liveScreen != nil && !ended:
			live = state.Text.String() + fmt.Sprintf("    %s so far\n", output.FormatDuration(time.Since(start)))
		case shown != state.Text.String():
			shown = state.Text.String()
			p.AddLine("    %s", time.Now().Format(time.RFC3339))
			p.Text.WriteString(shown)
		}
		if err := m.printPageWithLiveText(p, live); err != nil {
			return err
		}
		p = m.newPage()
		switch {
		case d.Status == api.DeploymentStatusSuccessful:
			return nil
		case d.Status == api.DeploymentStatusFailed:
			if err := m.watchRollback(ctx, d); err != nil {
				return err
			}
			return &cli.ExitError{Code: 1}
		case ended:
			return &cli.ExitError{Code: 1}
		case d.Status == "":
			return fmt.Errorf("read deployment %q: the answer does not say how it stands", id)
		}
		if err := MakeNextQueryBlockOrSleep(ctx, q, meta); err != nil {
			return err
		}
	}
}

func isDeploymentEndedOrBlocked(status string) bool {
	switch status {
	case api.DeploymentStatusSuccessful, api.DeploymentStatusFailed, api.DeploymentStatusCancelled, api.DeploymentStatusBlocked:
		return true
	}
	return false
}

// AddDeploymentState adds to a page a deployment, its tasks that do not run and, with -verbose, its allocations. It
// formats the times of restarts as delays from now, or as times of day if now is zero.
func (m *Monitor) AddDeploymentState(ctx context.Context, p *output.Page, d *api.Deployment, now time.Time) error {
	job := m.readJobOrNil(ctx, d.JobID)
	failure := taskreason.DescribeFailedDeployment(ctx, m.client, d, job)
	tables.PrintDeployment(p, d, failure.Reason, failure.Remedy, m.verbose)
	allocs, _, err := m.client.Deployments().Allocations(d.ID, apiclient.QueryOptions(ctx, m.namespace))
	if err != nil {
		if !m.verbose {
			return nil // without -verbose the allocations only explain why tasks do not run
		}
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read allocations of deployment %q", d.ID), err)
	}
	if m.verbose {
		p.AddSectionTitle("Allocations")
		tables.PrintAllocations(p, allocs, true)
	}
	if evals, _, err := m.client.Jobs().Evaluations(d.JobID, apiclient.QueryOptions(ctx, m.namespace)); err == nil && !isDeploymentEndedOrBlocked(d.Status) {
		taskreason.PrintPlacementFailure(ctx, p, m.client, job, evals)
	}
	taskreason.PrintTasksNotRunningAndChecks(ctx, p, m.client, job, allocs, now, m.verbose)
	return nil
}

// readJobOrNil returns a job, or nil if it cannot be read.
func (m *Monitor) readJobOrNil(ctx context.Context, id string) *api.Job {
	job, _, err := m.client.Jobs().Info(id, apiclient.QueryOptions(ctx, m.namespace))
	if err != nil {
		return nil
	}
	return job
}

// watchRollback follows the deployment that an auto_revert has started.
func (m *Monitor) watchRollback(ctx context.Context, failedDeployment *api.Deployment) error {
	for _, group := range failedDeployment.TaskGroups {
		if group == nil || !group.AutoRevert {
			continue
		}
		next, _, err := m.client.Jobs().LatestDeployment(failedDeployment.JobID, apiclient.QueryOptions(ctx, m.namespace))
		if err != nil || next == nil || next.ID == failedDeployment.ID {
			return err
		}
		_ = m.WatchDeploymentAndRollback(ctx, next.ID) // the failed deployment determines the exit code
		return nil
	}
	return nil
}
