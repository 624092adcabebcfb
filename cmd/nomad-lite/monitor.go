package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/nomad/api"
)

// monitor shows what comes of an evaluation, as Nomad's command line does, until
// it is settled. With a deployment that is when the deployment has ended.
type monitor struct {
	client    *api.Client
	out       io.Writer
	namespace string
}

func (m *monitor) say(format string, args ...any) {
	fmt.Fprintf(m.out, "    %s: %s\n", time.Now().Format(time.RFC3339), fmt.Sprintf(format, args...))
}

func (m *monitor) head(format string, args ...any) {
	fmt.Fprintf(m.out, "==> %s: %s\n", time.Now().Format(time.RFC3339), fmt.Sprintf(format, args...))
}

func (m *monitor) query(ctx context.Context, index uint64) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: m.namespace, WaitIndex: index}).WithContext(ctx)
}

// evaluation returns an error with the exit code: 2 when not all could be
// placed, 1 when a deployment failed.
func (m *monitor) evaluation(ctx context.Context, id string) error {
	m.head("Monitoring evaluation %q", short(id))
	seen := make(map[string]string) // client status by alloc
	told, index := false, uint64(0)
	for {
		eval, meta, err := m.client.Evaluations().Info(id, m.query(ctx, index))
		if err != nil {
			return failed(fmt.Sprintf("read evaluation %q", short(id)), err)
		}
		index = meta.LastIndex
		if !told {
			told = true
			m.say("Evaluation triggered by job %q", eval.JobID)
		}
		if err := m.allocations(ctx, eval, seen); err != nil {
			return err
		}
		switch eval.Status {
		case api.EvalStatusComplete, api.EvalStatusFailed, api.EvalStatusCancelled:
			return m.settled(ctx, eval)
		}
	}
}

func (m *monitor) allocations(ctx context.Context, eval *api.Evaluation, seen map[string]string) error {
	allocs, _, err := m.client.Evaluations().Allocations(eval.ID, m.query(ctx, 0))
	if err != nil {
		return failed(fmt.Sprintf("read allocations of evaluation %q", short(eval.ID)), err)
	}
	slices.Reverse(allocs) // newest first
	for _, a := range allocs {
		before, known := seen[a.ID]
		seen[a.ID] = a.ClientStatus
		switch {
		case !known && a.CreateIndex >= eval.CreateIndex:
			m.say("Allocation %q created: node %q, group %q", short(a.ID), short(a.NodeID), a.TaskGroup)
		case !known:
			m.say("Allocation %q modified: node %q, group %q", short(a.ID), short(a.NodeID), a.TaskGroup)
		case before != a.ClientStatus:
			m.say("Allocation %q status changed: %q -> %q (%s)", short(a.ID), before, a.ClientStatus, a.ClientDescription)
		}
	}
	return nil
}

func (m *monitor) settled(ctx context.Context, eval *api.Evaluation) error {
	m.head("Evaluation %q finished with status %q", short(eval.ID), eval.Status)
	var code error
	if len(eval.FailedTGAllocs) > 0 {
		code = &exitError{code: 2}
		for _, group := range slices.Sorted(maps.Keys(eval.FailedTGAllocs)) {
			m.say("Task Group %q (failed to place %d allocation(s)):", group, eval.FailedTGAllocs[group].CoalescedFailures+1)
			for _, line := range shortage(eval.FailedTGAllocs[group]) {
				fmt.Fprintf(m.out, "      * %s\n", line)
			}
		}
		if eval.StatusDescription != "" {
			m.say("%s", eval.StatusDescription)
		}
	}
	if eval.BlockedEval != "" {
		m.say("Evaluation %q waiting for additional capacity to place remainder", short(eval.BlockedEval))
	}
	if eval.DeploymentID == "" {
		return code
	}
	return m.deployment(ctx, eval.DeploymentID)
}

// shortage says why a group could not be placed.
func shortage(metric *api.AllocationMetric) []string {
	var lines []string
	if metric.NodesEvaluated == 0 {
		lines = append(lines, "No nodes were eligible for evaluation")
	}
	for _, constraint := range slices.Sorted(maps.Keys(metric.ConstraintFiltered)) {
		lines = append(lines, fmt.Sprintf("Constraint %q: %d nodes excluded by filter", constraint, metric.ConstraintFiltered[constraint]))
	}
	for _, dimension := range slices.Sorted(maps.Keys(metric.DimensionExhausted)) {
		lines = append(lines, fmt.Sprintf("Dimension %q exhausted on %d nodes", dimension, metric.DimensionExhausted[dimension]))
	}
	return lines
}

// deployment waits for the end of a deployment, and of the one that takes the
// failed one back.
func (m *monitor) deployment(ctx context.Context, id string) error {
	m.head("Monitoring deployment %q", short(id))
	index, shown := uint64(0), ""
	for {
		d, meta, err := m.client.Deployments().Info(id, m.query(ctx, index))
		if err != nil {
			return failed(fmt.Sprintf("read deployment %q", short(id)), err)
		}
		index = meta.LastIndex
		if news := d.StatusDescription + "\n" + deploymentTable(d); news != shown {
			shown = news
			m.say("Deployment %q: %s", short(id), news)
		}
		switch d.Status {
		case api.DeploymentStatusSuccessful:
			return nil
		case api.DeploymentStatusFailed:
			if err := m.rollback(ctx, d); err != nil {
				return err
			}
			return &exitError{code: 1}
		case api.DeploymentStatusCancelled, api.DeploymentStatusBlocked:
			return &exitError{code: 1}
		}
	}
}

// rollback follows the deployment that an auto_revert has begun.
func (m *monitor) rollback(ctx context.Context, failedOne *api.Deployment) error {
	for _, group := range failedOne.TaskGroups {
		if !group.AutoRevert {
			continue
		}
		next, _, err := m.client.Jobs().LatestDeployment(failedOne.JobID, m.query(ctx, 0))
		if err != nil || next == nil || next.ID == failedOne.ID {
			return err
		}
		_ = m.deployment(ctx, next.ID) // the exit code is that of the one that failed
		return nil
	}
	return nil
}

func deploymentTable(d *api.Deployment) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "    Task Group\tPromoted\tDesired\tCanaries\tPlaced\tHealthy\tUnhealthy")
	for _, name := range slices.Sorted(maps.Keys(d.TaskGroups)) {
		g := d.TaskGroups[name]
		promoted := "-"
		if g.DesiredCanaries > 0 {
			promoted = fmt.Sprint(g.Promoted)
		}
		fmt.Fprintf(w, "    %s\t%s\t%d\t%d\t%d\t%d\t%d\n", name, promoted, g.DesiredTotal, g.DesiredCanaries, g.PlacedAllocs, g.HealthyAllocs, g.UnhealthyAllocs)
	}
	w.Flush() //nolint:errcheck // a strings.Builder takes everything
	return b.String()
}
