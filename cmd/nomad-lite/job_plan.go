package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

const jobPlanHelp = `Show what would change if this job was run now, and whether there is room for
it. Nothing is changed.

At the end stands the index of the job that the plan was made for: given to
'job run -check-index', nothing is run if the job has changed since.

Exit codes: 0 nothing would be placed or stopped, 1 something would, 255 the
plan could not be made.`

// noPlan is the exit code of a failed plan.
const noPlan = 255

type jobPlanOptions struct {
	file           jobFileFlags
	client         clientFlags
	format         formatFlags
	diff           bool
	verbose        bool
	policyOverride bool
}

func newJobPlanCommand(s *streams) *cobra.Command {
	var o jobPlanOptions
	cmd := &cobra.Command{
		Use:   "plan [flags] FILE",
		Short: "Show what a job file would change",
		Long:  jobPlanHelp,
		Example: `  nomad-lite job plan web.nomad.hcl
  nomad-lite job plan -var image=web:2 -verbose web.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error { return planFailed(oneJobFile(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			changes, err := planJob(cmd.Context(), o, args[0], s)
			if err != nil {
				return planFailed(err)
			}
			if changes {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return planFailed(flagError(cmd, err)) })
	o.file.register(cmd)
	o.client.register(cmd)
	o.format.registerTemplate(cmd)
	cmd.Flags().BoolVar(&o.diff, "diff", true, "show what is different")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show all of what is new or gone")
	cmd.Flags().BoolVar(&o.policyOverride, "policy-override", false, "override soft policies, where there are any")
	return cmd
}

func planFailed(err error) error {
	var said *exitError
	if errors.As(err, &said) {
		err = said.err
	} else if err == nil {
		return nil
	}
	return &exitError{code: noPlan, err: err}
}

// planJob returns whether running the job would place or stop anything.
func planJob(ctx context.Context, o jobPlanOptions, path string, s *streams) (changes bool, err error) {
	file, err := o.file.read(s, path, noPlan)
	if err != nil {
		return false, err
	}
	c, err := o.client.client()
	if err != nil {
		return false, err
	}
	if good, err := file.checkPorts(s); err != nil || !good {
		return false, errors.Join(&exitError{code: noPlan}, err)
	}
	o.client.goTo(c, file.job)
	plan, _, err := c.Jobs().PlanOpts(file.job, &api.PlanOptions{Diff: o.diff, PolicyOverride: o.policyOverride}, write(ctx, valueOf(file.job.Namespace)))
	if err != nil {
		return false, file.placed(failed("plan job "+path, err))
	}
	model.Canonicalize(file.job)
	if len(plan.FailedTGAllocs) > 0 {
		if err := file.checkRemoteNode(ctx, s, c); err != nil {
			return false, err
		}
	}
	if o.format.wanted() {
		return planChanges(plan), o.format.print(s, plan)
	}
	p := s.page()
	if o.diff && plan.Diff != nil {
		differ{p, o.verbose}.job(plan.Diff)
		p.line("")
	}
	if gates := model.GateGraph(file.job); gates != "" {
		p.lines(gates)
		p.line("")
	}
	p.dryRun(plan)
	if plan.Warnings != "" {
		p.line("")
		p.line("%s", coloredCell{colourYellow, "Job Warnings:"})
		p.lines(plan.Warnings)
	}
	p.line("")
	p.line("Job Modify Index: %d", plan.JobModifyIndex)
	p.line("To run the job only if it has not changed since this plan:")
	p.line("")
	p.line("  nomad-lite job run -check-index %d %s", plan.JobModifyIndex, strings.Join(append(o.file.again(), path), " "))
	return planChanges(plan), s.show(p)
}

// checkRemoteNode reports which constraints the node of an agent does not satisfy. In a
// cluster, and for a client that cannot read nodes, it reports nothing, and the plan shows
// what fits.
func (j *jobFile) checkRemoteNode(ctx context.Context, s *streams, c *api.Client) error {
	nodes, _, err := c.Nodes().List(query(ctx, ""))
	if err != nil || len(nodes) != 1 {
		return nil
	}
	n, _, err := c.Nodes().Info(nodes[0].ID, query(ctx, ""))
	if err != nil {
		return nil
	}
	_, err = j.checkNode(s, fmt.Sprintf("Node %q does not satisfy:", n.Name), scheduler.Node{NodeFacts: model.NodeFacts{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Class: n.NodeClass, Pool: n.NodePool, Attributes: n.Attributes, Meta: n.Meta,
	}})
	return err
}

// dryRun adds the changes that the scheduler would make.
func (p *page) dryRun(plan *api.JobPlanResponse) {
	p.line("%s", coloredCell{colourBold, "Scheduler dry-run:"})
	if len(plan.FailedTGAllocs) == 0 {
		p.line("%s", coloredCell{colourGreen, "- All tasks successfully allocated."})
	} else {
		p.line("%s", coloredCell{colourYellow, "- WARNING: Failed to place all allocations."})
		p.shortages("  ", plan.FailedTGAllocs)
	}
	for _, e := range plan.CreatedEvals {
		if e != nil && e.TriggeredBy == "rolling-update" {
			p.line("- Rolling update, next evaluation will be in %s.", e.Wait)
		}
	}
	if next := plan.NextPeriodicLaunch; !next.IsZero() {
		p.line("- If submitted now, next periodic launch would be at %s (%s).", next.Local().Format(time.RFC3339), ago(time.Since(next)))
	}
	if a := plan.Annotations; a != nil && len(a.PreemptedAllocs) > 0 {
		p.section("Preempted Allocations")
		p.allocations(a.PreemptedAllocs, false)
	}
}

// lines adds a text of several lines from an agent.
func (p *page) lines(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		p.text.WriteString(strings.TrimRight(string(printable([]byte(line), false)), "\n") + "\n")
	}
}

func planChanges(plan *api.JobPlanResponse) bool {
	if plan.Annotations == nil || plan.Diff != nil && plan.Diff.Type == diffNone {
		return false
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(plan.Annotations.DesiredTGUpdates)), func(u *api.DesiredUpdates) bool {
		return u != nil && u.Stop+u.Place+u.Migrate+u.DestructiveUpdate+u.Canary > 0
	})
}

// again returns the flags as arguments for another command line.
func (f *jobFileFlags) again() []string {
	var words []string
	if f.json {
		words = append(words, "-json")
	}
	if !f.strict {
		words = append(words, "-hcl2-strict=false")
	}
	for _, v := range f.vars {
		words = append(words, "-var", quoted(v))
	}
	for _, v := range f.varFiles {
		words = append(words, "-var-file", quoted(v))
	}
	return words
}

// quoted quotes a word for a shell.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=./:,@%+", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return fmt.Sprintf("'%s'", strings.ReplaceAll(word, "'", `'\''`))
}
