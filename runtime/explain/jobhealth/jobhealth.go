package jobhealth

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Word is a job's health in one word.
type Word string

// A job needs attention if its word is Failing, Failed, Blocked or Degraded, or if it is Waiting and its health has a remedy.
const (
	Failing   Word = "failing"   // no allocation works: tasks fail again and again, and are restarted
	Failed    Word = "failed"    // no allocation works, and none is restarted; a finite job has ended without success
	Blocked   Word = "blocked"   // no allocation is placed: the node lacks resources, or does not meet a constraint
	Degraded  Word = "degraded"  // only part of the job works, or its tasks run but do not pass their checks
	Deploying Word = "deploying" // a deployment is active and has no failures
	Waiting   Word = "waiting"   // a task is being set up, or the job waits for its next launch
	Running   Word = "running"   // all required tasks run and pass their checks
	Complete  Word = "complete"  // a finite job has ended with success
	Stopped   Word = "stopped"   // a user has stopped the job, or all its counts are zero
)

// Words are all words. Those that need attention come first.
var Words = []Word{Failing, Failed, Blocked, Degraded, Deploying, Waiting, Running, Complete, Stopped}

// NeedsAttention reports whether the word means that part of the job does not work.
func (w Word) NeedsAttention() bool {
	return w == Failing || w == Failed || w == Blocked || w == Degraded
}

// Snapshot is a job's state at one time. Its objects are not changed.
type Snapshot struct {
	Now         time.Time
	Job         *api.Job
	Allocations []*api.Allocation // the current job's, oldest first
	Evaluations []*api.Evaluation // the job's
	Deployment  *api.Deployment   // the job's latest; nil if there is none
	// LastEnd returns how the last run or start ended, for a task in an active allocation; nil if none has ended.
	LastEnd func(allocID, task string) *restart.RunEnd
	// FailedDeployment is the job's latest failed deployment; nil if there is none.
	FailedDeployment *api.Deployment
	// DeploymentFailure returns why an allocation was last unhealthy for a deployment; nil if it never was, or if the reason is
	// unknown. It is called only if FailedDeployment is not nil.
	DeploymentFailure func(*api.Allocation) *restart.DeploymentFailure
	// ChecksByAllocID has the service check results for running allocations.
	ChecksByAllocID map[string][]api.AllocCheckStatus
	Node            *api.Node // the allocations' node; may be nil
	// LastChild is the last child launched by a periodic or parameterized job; nil if there is none.
	LastChild *Child
}

// Child is a job launched by a periodic or parameterized job.
type Child struct {
	ID     string
	Health Health
}

// Health is the result of Evaluate.
type Health struct {
	Word Word
	// Cause says in one line why the word is not Running or Complete. It is empty if the word says enough.
	Cause  string
	Remedy string // advice to the user; can be empty
	// AllocID and Task are the cause's subject; each can be empty.
	AllocID, Task string
	// FailedDeployment is nil if there is none to report.
	FailedDeployment *FailedDeployment
	// RecheckAt is when to call Evaluate again if the snapshot does not change before; zero means never.
	RecheckAt time.Time

	causePrefix string        // the cause's text before causeReason
	causeReason reason.Reason // the task's reason; zero if the cause has none
	causeSuffix string        // the cause's text after causeReason
	// lastRemedy follows the remedy in causeReason.
	lastRemedy string
}

// Sentence returns the cause and the remedy in one line, or "" if there is no cause.
func (h Health) Sentence() string {
	if h.Cause == "" || h.Remedy == "" {
		return h.Cause
	}
	return h.Cause + ". " + h.Remedy
}

// WantedStderr returns the task with the standard error that may explain the cause. If since is not zero, only a last line
// written after since explains it. ok is false if no output is wanted.
func (h Health) WantedStderr() (allocID, task string, since time.Time, ok bool) {
	return h.AllocID, h.Task, h.causeReason.LastProcessOutputStart, h.causeReason.CanOutputExplain
}

// WithStderrTail returns the health with a line from the tail in its cause, and with a remedy for a known message in it. The
// caller reads the tail for the task from WantedStderr; see [reason.Reason.WithStderrTail].
func (h Health) WithStderrTail(tail string) Health {
	h.setReason(h.causePrefix, h.causeReason.WithStderrTail(tail))
	return h
}

// setReason sets the cause and the remedy.
func (h *Health) setReason(prefix string, r reason.Reason) {
	h.causePrefix, h.causeReason = prefix, r
	h.Remedy = joinSentences(r.Remedy, h.lastRemedy)
	r.Remedy = ""
	h.Cause = prefix + r.String() + h.causeSuffix
}

func joinSentences(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ". " + b
}

// hasFailedDeployment reports whether the current version's deployment failed and not all desired allocations run this version
// and work: a job that works after a too short deadline needs no attention.
func (s Snapshot) hasFailedDeployment(found []finding) bool {
	if reason.RemedyForFailedDeployment(s.Deployment, s.Job) == "" {
		return false
	}
	missing := 0
	for _, g := range s.Job.TaskGroups {
		missing += pointer.Value(g.Count)
	}
	for _, f := range found {
		if f.condition == works && f.jobVersion == s.Deployment.JobVersion {
			missing--
		}
	}
	return missing > 0
}

// addFailedDeployment adds the failed last deployment and its remedy to the health of a job that needs attention.
func (s Snapshot) addFailedDeployment(h *Health, worst finding) {
	if !h.Word.NeedsAttention() {
		return
	}
	remedy := reason.RemedyForFailedDeployment(s.Deployment, s.Job)
	switch {
	case worst.waitsForOthers && worst.reason.Remedy != "":
		remedy = "" // the job file needs no change: the tasks only wait for others, and start then
	case h.Cause == "":
		h.Cause, h.Remedy = fmt.Sprintf("deployment of version %d failed: %s", s.Deployment.JobVersion, s.Deployment.StatusDescription), remedy
		return
	}
	h.causeSuffix, h.lastRemedy = fmt.Sprintf("; deployment of version %d failed", s.Deployment.JobVersion), remedy
	if h.causeReason != (reason.Reason{}) {
		h.setReason(h.causePrefix, h.causeReason)
		return
	}
	h.Cause, h.Remedy = h.Cause+h.causeSuffix, joinSentences(h.Remedy, h.lastRemedy)
}

// Evaluate returns a job's health.
func Evaluate(s Snapshot) Health {
	switch {
	case pointer.Value(s.Job.Stop):
		return s.stopped()
	case model.CanHaveChildren(s.Job):
		return s.launcher()
	}
	found := s.findFindings()
	hasFailedDeployment := s.hasFailedDeployment(found)
	h := s.judge(found, hasFailedDeployment)
	if hasFailedDeployment {
		s.addFailedDeployment(&h, worstFinding(found))
	}
	h.FailedDeployment = s.failedDeployment(h.Word == Running || h.Word == Complete)
	for _, f := range found {
		if at := f.recheckAt; at.After(s.Now) && (h.RecheckAt.IsZero() || at.Before(h.RecheckAt)) {
			h.RecheckAt = at
		}
	}
	return h
}

func (s Snapshot) stopped() Health {
	h := Health{Word: Stopped}
	active := 0
	for _, a := range s.Allocations {
		if !a.ClientTerminalStatus() {
			active++
		}
	}
	if active > 0 {
		h.Cause = countText(active, "allocation") + " has not ended yet"
		if active > 1 {
			h.Cause = countText(active, "allocation") + " have not ended yet"
		}
	}
	return h
}

// launcher returns the health of a periodic or parameterized job: it has children and no allocations.
func (s Snapshot) launcher() Health {
	if c := s.LastChild; c != nil && (c.Health.Word == Failed || c.Health.Word == Failing) {
		h := c.Health
		h.Word = Degraded
		h.setReason(fmt.Sprintf("its last launch %q is %s: %s", c.ID, c.Health.Word, h.causePrefix), h.causeReason)
		if h.causeReason == (reason.Reason{}) {
			h.Cause, h.Remedy = fmt.Sprintf("its last launch %q is %s: %s", c.ID, c.Health.Word, c.Health.Cause), c.Health.Remedy
		}
		return h
	}
	if s.Job.Periodic == nil {
		return Health{Word: Waiting, Cause: "starts when it is dispatched: nomad-lite job dispatch " + pointer.Value(s.Job.ID)}
	}
	if s.Job.Periodic.Enabled != nil && !*s.Job.Periodic.Enabled {
		return Health{Word: Waiting, Cause: "is never launched: its periodic block is not enabled"}
	}
	next := model.NextPeriodicLaunch(s.Job, s.Now)
	if next.IsZero() {
		return Health{Word: Waiting, Cause: "is never launched: its schedule has no later time"}
	}
	return Health{Word: Waiting, Cause: "is launched next at " + next.Format(time.RFC3339), RecheckAt: next}
}

// judge returns the health of a job with allocations.
func (s Snapshot) judge(found []finding, hasFailedDeployment bool) Health {
	count := map[condition]int{}
	for _, f := range found {
		count[f.condition]++
	}
	worst := worstFinding(found)
	unplaced := reason.NewestUnplacedEval(s.Evaluations)
	isFinite := isFiniteJob(s.Job)
	deploys := s.Deployment != nil && model.DeploymentActive(s.Deployment) && s.Deployment.JobVersion == pointer.Value(s.Job.Version)
	switch {
	case count[looping]+count[ended] > 0:
		word := Failing
		switch {
		case count[works]+count[unhealthy] > 0:
			word = Degraded
		case count[looping] == 0 && count[starting] > 0:
			word = Degraded
		case count[looping] == 0:
			word = Failed
		}
		return worst.health(word, s.affectedText(count[looping]+count[ended], len(found)))
	case unplaced != nil:
		word := Blocked
		if count[works]+count[unhealthy]+count[starting] > 0 {
			word = Degraded
		}
		return Health{Word: word, Cause: s.unplacedText(unplaced)}
	case count[unhealthy] > 0:
		if deploys && worst.isDeciding {
			return worst.health(Deploying, s.deploymentText()+"; ")
		}
		return worst.health(Degraded, s.affectedText(count[unhealthy], len(found)))
	case hasFailedDeployment:
		if count[starting] > 0 {
			return worst.health(Degraded, s.affectedText(count[starting], len(found)))
		}
		return Health{Word: Degraded} // addFailedDeployment adds the cause
	case deploys && (count[starting] == 0 || !worst.waitsForOthers):
		h := Health{Word: Deploying, Cause: s.deploymentText(), Remedy: s.deploymentRemedy()}
		if count[starting] > 0 {
			h = worst.health(Deploying, s.deploymentText()+"; ")
		}
		return h
	case count[starting] > 0:
		return worst.health(Waiting, s.affectedText(count[starting], len(found)))
	case count[works] > 0:
		return Health{Word: Running}
	case count[done] > 0:
		return Health{Word: Complete}
	case slices.ContainsFunc(s.Evaluations, func(e *api.Evaluation) bool { return e.Status == api.EvalStatusPending }):
		return Health{Word: Waiting, Cause: "its evaluation is pending"}
	case hasNoInstances(s.Job):
		return Health{Word: Stopped, Cause: "the counts of all its groups are 0"}
	case isFinite && pointer.Value(s.Job.Status) == model.JobDead:
		return Health{Word: Complete}
	case pointer.Value(s.Job.Status) == model.JobDead:
		return Health{Word: Stopped, Cause: "all its allocations were stopped"}
	}
	return Health{Word: Waiting, Cause: "has no allocations yet"}
}

func isFiniteJob(job *api.Job) bool {
	kind := pointer.Value(job.Type)
	return kind == api.JobTypeBatch || kind == api.JobTypeSysbatch
}

func hasNoInstances(job *api.Job) bool {
	kind := pointer.Value(job.Type)
	if kind == api.JobTypeSystem || kind == api.JobTypeSysbatch {
		return false
	}
	return !slices.ContainsFunc(job.TaskGroups, func(g *api.TaskGroup) bool { return pointer.Value(g.Count) > 0 })
}

// affectedText returns how many allocations have the cause's condition, as the cause's prefix, or "" if all have it and there is
// only one.
func (s Snapshot) affectedText(affected, all int) string {
	if all <= 1 {
		return ""
	}
	return fmt.Sprintf("%d of %s: ", affected, countText(all, "allocation"))
}

// unplacedText returns why allocations are not placed.
func (s Snapshot) unplacedText(e *api.Evaluation) string {
	missingDrivers := reason.MissingDriverReasonsByGroup(s.Node, s.Job)
	explained := reason.OfUnplacedEval(s.Evaluations, e)
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(e.FailedTGAllocs)) {
		metric := e.FailedTGAllocs[name]
		if metric == nil {
			metric = new(api.AllocationMetric)
		}
		lines := missingDrivers[name]
		if len(lines) == 0 {
			lines = reason.PlacementFailureLines(metric)
		} else {
			explained = "" // it does not list the node's drivers
		}
		parts = append(parts, fmt.Sprintf("no place for %s of group %q: %s", countText(metric.CoalescedFailures+1, "allocation"), name, strings.ReplaceAll(strings.Join(lines, "; "), "Task ", "task ")))
	}
	if explained != "" {
		return "no place for " + strings.TrimPrefix(explained, "no place for ")
	}
	return strings.Join(parts, "; ")
}

// deploymentText returns the active deployment's progress.
func (s Snapshot) deploymentText() string {
	d := s.Deployment
	wanted, healthy := 0, 0
	for _, g := range d.TaskGroups {
		if g != nil {
			wanted, healthy = wanted+g.DesiredTotal, healthy+g.HealthyAllocs
		}
	}
	text := fmt.Sprintf("deployment of version %d: %d of %s healthy", d.JobVersion, healthy, countText(wanted, "allocation"))
	switch {
	case d.Status == api.DeploymentStatusPaused:
		text += ", paused"
	case d.StatusDescription == model.DeploymentNeedsPromotion && s.areCanariesHealthy():
		text += ", waits for promotion"
	case d.StatusDescription == model.DeploymentNeedsPromotion:
		text += ", waits for its canaries"
	}
	return text
}

// deploymentRemedy returns what the user must do to continue the active deployment, or "".
func (s Snapshot) deploymentRemedy() string {
	d := s.Deployment
	switch {
	case d.Status == api.DeploymentStatusPaused:
		return "Continue it: nomad-lite deployment resume " + shortID(d.ID)
	case d.StatusDescription == model.DeploymentNeedsPromotion && s.areCanariesHealthy():
		return "Promote it: nomad-lite deployment promote " + shortID(d.ID)
	}
	return ""
}

func (s Snapshot) areCanariesHealthy() bool {
	for _, g := range s.Deployment.TaskGroups {
		if g != nil && !g.Promoted && g.HealthyAllocs < g.DesiredCanaries {
			return false
		}
	}
	return true
}

// shortID returns an id's first characters. All commands accept them as an id.
func shortID(id string) string { return id[:min(8, len(id))] }

func countText(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
