package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// watchFlags select how a command follows the effects of its change. They are Nomad's
// flags.
type watchFlags struct {
	detach  bool
	verbose bool
}

func (f *watchFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.detach, "detach", false, "do not watch: print the id of the evaluation and return")
	f.registerVerbose(cmd)
}

func (f *watchFlags) registerVerbose(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "print whole ids, and more about allocations")
}

// watch follows an evaluation, or with -detach prints its id. A job that is only a template
// for others has no evaluation.
func (f *watchFlags) watch(ctx context.Context, s *streams, c *api.Client, namespace, evalID string) error {
	if evalID == "" {
		return nil
	}
	if f.detach {
		_, err := fmt.Fprintln(s.out, "Evaluation ID:", evalID)
		return err
	}
	return newMonitor(s, c, namespace, f.verbose).evaluation(ctx, evalID)
}

// monitor follows an evaluation until it is complete, as Nomad's command line does. If the
// evaluation has a deployment, monitor follows the deployment to its end.
type monitor struct {
	client    *api.Client
	streams   *streams
	namespace string
	verbose   bool
	screen    *screen // nil unless standard output is a terminal
}

func newMonitor(s *streams, c *api.Client, namespace string, verbose bool) *monitor {
	m := &monitor{client: c, streams: s, namespace: namespace, verbose: verbose}
	if screen := newScreen(s); screen != nil && sameFile(screen.w, s.out) {
		m.screen = screen
	}
	return m
}

// show writes a page. On a terminal the live lines stay below it, until the next call.
func (m *monitor) show(p *page, live string) error {
	if m.screen == nil {
		return m.streams.show(p)
	}
	return m.screen.show([]byte(p.text.String()), func(_, rows int) []string {
		lines := strings.Split(strings.TrimSuffix(live, "\n"), "\n")
		if live == "" || len(lines) >= rows {
			return nil
		}
		return lines
	})
}

func (m *monitor) page() *page { return m.streams.page() }

func (m *monitor) id(id string) string { return shortID(id, m.verbose) }

// head adds the first line about a watched object; say adds the following lines.
func (p *page) head(format string, args ...any) {
	p.line("==> "+time.Now().Format(time.RFC3339)+": "+format, args...)
}

func (p *page) say(format string, args ...any) {
	p.line("    "+time.Now().Format(time.RFC3339)+": "+format, args...)
}

// evaluation returns an error with the exit code: 2 when an allocation could not be placed,
// 1 when a deployment has failed.
func (m *monitor) evaluation(ctx context.Context, id string) error {
	p := m.page()
	p.head("Monitoring evaluation %q", m.id(id))
	seen := make(map[string]string) // client status by allocation
	q, told := query(ctx, m.namespace), false
	for {
		eval, meta, err := m.client.Evaluations().Info(id, q)
		if err != nil {
			return failed(fmt.Sprintf("read evaluation %q", id), err)
		}
		if !told {
			told = true
			p.say("Evaluation triggered by job %q", eval.JobID)
		}
		if err := m.allocations(ctx, p, eval, seen); err != nil {
			return err
		}
		switch eval.Status {
		case api.EvalStatusComplete, api.EvalStatusFailed, api.EvalStatusCancelled:
			return m.settled(ctx, p, eval)
		case "":
			return fmt.Errorf("read evaluation %q: the answer does not say how it stands", id)
		}
		if err := m.show(p, ""); err != nil {
			return err
		}
		p = m.page()
		if err := nextIndex(ctx, q, meta); err != nil {
			return err
		}
	}
}

// nextIndex makes the next query block until the index of the last answer changes. If the
// server sends no index, nextIndex waits for a second.
func nextIndex(ctx context.Context, q *api.QueryOptions, meta *api.QueryMeta) error {
	if q.WaitIndex = meta.LastIndex; q.WaitIndex == 0 {
		return pause(ctx, time.Second)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *monitor) allocations(ctx context.Context, p *page, eval *api.Evaluation, seen map[string]string) error {
	allocs, _, err := m.client.Evaluations().Allocations(eval.ID, query(ctx, m.namespace))
	if err != nil {
		return failed(fmt.Sprintf("read allocations of evaluation %q", m.id(eval.ID)), err)
	}
	slices.Reverse(allocs) // newest first
	for _, a := range allocs {
		before, known := seen[a.ID]
		seen[a.ID] = a.ClientStatus
		switch {
		case !known && a.DesiredStatus != api.AllocDesiredStatusRun:
		case !known && a.CreateIndex >= eval.CreateIndex:
			p.say("Allocation %q created: node %q, group %q", m.id(a.ID), m.id(a.NodeID), a.TaskGroup)
		case !known:
			p.say("Allocation %q modified: node %q, group %q", m.id(a.ID), m.id(a.NodeID), a.TaskGroup)
		case before != a.ClientStatus:
			p.say("Allocation %q status changed: %q -> %q (%s)", m.id(a.ID), before, statusCell(a.ClientStatus), a.ClientDescription)
		}
	}
	return nil
}

func (m *monitor) settled(ctx context.Context, p *page, eval *api.Evaluation) error {
	p.head("Evaluation %q finished with status %q", m.id(eval.ID), eval.Status)
	var code error
	if len(eval.FailedTGAllocs) > 0 {
		code = &exitError{code: 2}
		p.say("Not all could be placed:")
		p.shortages("    ", eval.FailedTGAllocs)
		if eval.StatusDescription != "" {
			p.say("%s", eval.StatusDescription)
		}
	}
	if eval.BlockedEval != "" {
		p.say("Evaluation %q waiting for additional capacity to place remainder", m.id(eval.BlockedEval))
	}
	if eval.NextEval != "" {
		p.say("Monitoring next evaluation %q in %s", m.id(eval.NextEval), eval.Wait)
		if err := m.show(p, ""); err != nil {
			return err
		}
		if err := pause(ctx, eval.Wait); err != nil {
			return err
		}
		return m.evaluation(ctx, eval.NextEval)
	}
	if err := m.show(p, ""); err != nil {
		return err
	}
	if eval.DeploymentID == "" {
		return code
	}
	return m.deployment(ctx, eval.DeploymentID)
}

// shortages adds the reasons why groups could not be placed.
func (p *page) shortages(indent string, groups map[string]*api.AllocationMetric) {
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		metric := groups[name]
		if metric == nil {
			metric = new(api.AllocationMetric)
		}
		p.line(indent+"Task Group %q (failed to place %s):", name, counted(metric.CoalescedFailures+1, "allocation"))
		for _, line := range shortage(metric) {
			p.line(indent+"  * %s", line)
		}
	}
}

// shortage returns the reasons why a group could not be placed.
func shortage(metric *api.AllocationMetric) []string {
	var lines []string
	counted := func(format string, counts map[string]int) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			lines = append(lines, fmt.Sprintf(format, name, counts[name]))
		}
	}
	if metric.NodesEvaluated == 0 {
		lines = append(lines, "No nodes were eligible for evaluation")
	}
	for _, name := range slices.Sorted(maps.Keys(metric.NodesAvailable)) {
		if metric.NodesAvailable[name] == 0 {
			lines = append(lines, fmt.Sprintf("No nodes are available in datacenter %q", name))
		}
	}
	counted("Class %q: %d nodes excluded by filter", metric.ClassFiltered)
	counted("Constraint %q: %d nodes excluded by filter", metric.ConstraintFiltered)
	if metric.NodesExhausted > 0 {
		lines = append(lines, fmt.Sprintf("Resources exhausted on %d nodes", metric.NodesExhausted))
	}
	counted("Class %q exhausted on %d nodes", metric.ClassExhausted)
	counted("Dimension %q exhausted on %d nodes", metric.DimensionExhausted)
	for _, quota := range metric.QuotaExhausted {
		lines = append(lines, fmt.Sprintf("Quota limit hit %q", quota))
	}
	return lines
}

// deployment waits for the end of a deployment, and of its rollback. On a terminal it
// updates the live lines; elsewhere each change is another page.
func (m *monitor) deployment(ctx context.Context, id string) error {
	p := m.page()
	p.head("Monitoring deployment %q", m.id(id))
	q, shown, start := query(ctx, m.namespace), "", time.Now()
	if m.screen != nil {
		q.WaitTime = time.Second // the elapsed time is shown
	}
	for {
		d, meta, err := m.client.Deployments().Info(id, q)
		if err != nil {
			return failed(fmt.Sprintf("read deployment %q", id), err)
		}
		state := m.page()
		state.indent("    ", func(p *page) { err = m.state(ctx, p, d) })
		if err != nil {
			return err
		}
		ended := deploymentEnded(d.Status)
		live := ""
		switch {
		case m.screen != nil && !ended:
			live = state.text.String() + fmt.Sprintf("    %s so far\n", span(time.Since(start)))
		case shown != state.text.String():
			shown = state.text.String()
			p.line("    %s", time.Now().Format(time.RFC3339))
			p.text.WriteString(shown)
		}
		if err := m.show(p, live); err != nil {
			return err
		}
		p = m.page()
		switch {
		case d.Status == api.DeploymentStatusSuccessful:
			return nil
		case d.Status == api.DeploymentStatusFailed:
			if err := m.rollback(ctx, d); err != nil {
				return err
			}
			return &exitError{code: 1}
		case ended:
			return &exitError{code: 1}
		case d.Status == "":
			return fmt.Errorf("read deployment %q: the answer does not say how it stands", id)
		}
		if err := nextIndex(ctx, q, meta); err != nil {
			return err
		}
	}
}

func deploymentEnded(status string) bool {
	switch status {
	case api.DeploymentStatusSuccessful, api.DeploymentStatusFailed, api.DeploymentStatusCancelled, api.DeploymentStatusBlocked:
		return true
	}
	return false
}

// state adds a deployment and, with -verbose, its allocations.
func (m *monitor) state(ctx context.Context, p *page, d *api.Deployment) error {
	p.deployment(d, m.verbose)
	if !m.verbose {
		return nil
	}
	allocs, _, err := m.client.Deployments().Allocations(d.ID, query(ctx, m.namespace))
	if err != nil {
		return failed(fmt.Sprintf("read allocations of deployment %q", d.ID), err)
	}
	p.section("Allocations")
	p.allocations(allocs, true)
	return nil
}

// rollback follows the deployment that an auto_revert has started.
func (m *monitor) rollback(ctx context.Context, failedOne *api.Deployment) error {
	for _, group := range failedOne.TaskGroups {
		if group == nil || !group.AutoRevert {
			continue
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		next, _, err := m.client.Jobs().LatestDeployment(failedOne.JobID, query(ctx, m.namespace))
		if err != nil || next == nil || next.ID == failedOne.ID {
			return err
		}
		_ = m.deployment(ctx, next.ID) // the exit code is that of the failed deployment
		return nil
	}
	return nil
}

// deployment adds a deployment and the progress of its groups.
func (p *page) deployment(d *api.Deployment, verbose bool) {
	p.pairs(pairs{
		{"ID", shortID(d.ID, verbose)},
		{"Job ID", d.JobID},
		{"Job Version", d.JobVersion},
		{"Status", statusCell(d.Status)},
		{"Description", d.StatusDescription},
	})
	if len(d.TaskGroups) > 0 {
		p.section("Deployed")
		p.deployed(d.TaskGroups)
	}
}

// deployed adds the table of the groups. It leaves out columns that are empty for all
// groups.
func (p *page) deployed(groups map[string]*api.DeploymentState) {
	var reverts, canaries bool
	for _, g := range groups {
		reverts = reverts || g != nil && g.AutoRevert
		canaries = canaries || g != nil && g.DesiredCanaries > 0
	}
	columns := []struct {
		title string
		shown bool
		cell  func(*api.DeploymentState) any
	}{
		{"Auto Revert", reverts, func(g *api.DeploymentState) any { return g.AutoRevert }},
		{"Promoted", canaries, promoted},
		{"Desired", true, func(g *api.DeploymentState) any { return g.DesiredTotal }},
		{"Canaries", canaries, func(g *api.DeploymentState) any { return g.DesiredCanaries }},
		{"Placed", true, func(g *api.DeploymentState) any { return g.PlacedAllocs }},
		{"Healthy", true, func(g *api.DeploymentState) any { return g.HealthyAllocs }},
		{"Unhealthy", true, func(g *api.DeploymentState) any { return g.UnhealthyAllocs }},
		{"Progress Deadline", true, progressDeadline},
	}
	t := newTable("Task Group")
	for _, c := range columns {
		if c.shown {
			t.head = append(t.head, c.title)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		row := []any{name}
		for _, c := range columns {
			if c.shown && groups[name] != nil {
				row = append(row, c.cell(groups[name]))
			}
		}
		t.row(row...)
	}
	p.table(t)
}

func promoted(g *api.DeploymentState) any {
	if g.DesiredCanaries == 0 {
		return "N/A"
	}
	return g.Promoted
}

func progressDeadline(g *api.DeploymentState) any {
	if g.RequireProgressBy.IsZero() {
		return "N/A"
	}
	return g.RequireProgressBy.Local().Format(time.RFC3339)
}

// indent adds the output of add with a prefix on each line that is not empty.
func (p *page) indent(indent string, add func(*page)) {
	inner := &page{colours: p.colours}
	add(inner)
	for line := range strings.Lines(inner.text.String()) {
		if line != "\n" {
			line = indent + line
		}
		_, _ = io.WriteString(&p.text, line) // a strings.Builder returns no error
	}
}
