package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// The reasons of evaluations.
const (
	triggerRegister    = "job-register"
	triggerDeregister  = "job-deregister"
	triggerPeriodic    = "periodic-job"
	triggerAllocStop   = "alloc-stop"
	triggerAllocFailed = "alloc-failure"
	triggerDeployment  = "deployment-watcher"
	triggerScaling     = "job-scaling"
	triggerDrain       = "node-drain"
)

// change is one change of the store in the making, with what follows from it.
type change struct {
	Tx
	s    *Scheduler
	now  time.Time
	node Node
	room *Room

	wroteAllocs bool
	freed       bool     // there may be room for what is blocked
	touched     []JobKey // to be brought up to date at the end
	after       []func() // once it is durable
}

// update makes one change. An error of edit is returned as it is, and nothing is
// written.
func (s *Scheduler) update(ctx context.Context, edit func(*change) error) (uint64, error) {
	var c *change
	index, err := s.store.Update(ctx, func(tx Tx) error {
		c = &change{Tx: tx, s: s, now: s.host.Now()}
		c.Operation(opEvaluation)
		c.takeRoom()
		if err := edit(c); err != nil {
			return err
		}
		c.drain()
		c.settleAll()
		c.giveRoom()
		return nil
	})
	if err != nil {
		s.mu.Lock()
		s.room = nil // it may have what was not stored
		s.mu.Unlock()
		return 0, err
	}
	for _, f := range c.after {
		f()
	}
	if c.freed {
		tick(s.retry)
	}
	return index, nil
}

// takeRoom takes what is known about the room, or reads it from the state.
func (c *change) takeRoom() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	node := c.Node()
	if s.node != node || s.node == nil {
		s.node, s.facts, s.room = node, NodeOf(node), nil
	}
	c.node = s.facts
	if s.room == nil || s.roomIndex != c.AllocsIndex() {
		s.room = RoomOf(c, c.node)
		s.roomIndex = c.AllocsIndex()
	}
	c.room, s.room = s.room, nil
}

func (c *change) giveRoom() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.room = c.room
	if c.wroteAllocs {
		c.s.roomIndex = c.Index()
	}
}

// later does something once the change is durable.
func (c *change) later(f func()) { c.after = append(c.after, f) }

// touch brings a job up to date at the end of the change.
func (c *change) touch(key JobKey) {
	if !slices.Contains(c.touched, key) {
		c.touched = append(c.touched, key)
	}
}

func (c *change) putAlloc(a *api.Allocation) {
	c.wroteAllocs = true
	c.PutAlloc(a)
	if !c.Ended(a.ID) {
		c.room.Put(a)
	}
}

func (c *change) putEval(e *api.Evaluation) {
	c.PutEval(e)
	c.note(e)
}

// note remembers what is to be done about an evaluation.
func (c *change) note(e *api.Evaluation) {
	id, at := e.ID, time.Time{}
	if e.Status == api.EvalStatusPending {
		at = e.WaitUntil
		if at.IsZero() {
			at = c.now
		}
	}
	blocked := e.Status == api.EvalStatusBlocked
	c.later(func() {
		c.s.delayed.set(id, at)
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if blocked {
			c.s.blocked[id] = true
		} else {
			delete(c.s.blocked, id)
		}
	})
}

// newEval makes an evaluation of a job; it is stored when it has been processed.
func (c *change) newEval(job *api.Job, trigger string) *api.Evaluation {
	now := c.now.UnixNano()
	return &api.Evaluation{
		ID:             c.s.host.NewID(),
		Namespace:      *job.Namespace,
		Priority:       *job.Priority,
		Type:           *job.Type,
		TriggeredBy:    trigger,
		JobID:          *job.ID,
		JobModifyIndex: deref(job.JobModifyIndex),
		Status:         api.EvalStatusPending,
		CreateIndex:    c.Index(),
		CreateTime:     now,
		ModifyTime:     now,
	}
}

// evaluate plans for the job of an evaluation, and stores all that follows.
func (c *change) evaluate(eval *api.Evaluation) {
	c.apply(c.plan(eval))
}

// evaluateQuietly leaves no trace if there is nothing to do.
func (c *change) evaluateQuietly(job *api.Job, trigger string) (something bool) {
	out := c.plan(c.newEval(job, trigger))
	something = len(out.Place)+len(out.Update)+len(out.Deployments) > 0 ||
		len(out.Eval.FailedTGAllocs) > 0 && !c.isBlocked(KeyOf(job))
	if something {
		c.apply(out)
	}
	return something
}

func (c *change) isBlocked(key JobKey) bool {
	return slices.ContainsFunc(c.EvalsOfJob(key), func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked })
}

func (c *change) plan(eval *api.Evaluation) Changes {
	key := JobKey{eval.Namespace, eval.JobID}
	return Plan(Input{
		Eval:       eval,
		Job:        c.Job(key),
		Allocs:     c.AllocsOfJob(key),
		Evals:      c.EvalsOfJob(key),
		Deployment: LatestDeployment(c, key),
		Node:       c.node,
		Room:       c.room,
		Host:       c.s.host,
		Now:        c.now,
	})
}

// LatestDeployment returns the newest deployment of a job, nil if there is none.
func LatestDeployment(state State, key JobKey) *api.Deployment {
	all := state.DeploymentsOfJob(key)
	if len(all) == 0 {
		return nil
	}
	return slices.MaxFunc(all, func(a, b *api.Deployment) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.JobVersion, b.JobVersion))
	})
}

func (c *change) apply(out Changes) {
	c.Operation(opPlan)
	for _, d := range out.Deployments {
		c.PutDeployment(d)
		c.watchDeployment(d)
	}
	for _, a := range out.Update {
		c.putAlloc(a)
	}
	for _, a := range out.Place {
		c.putAlloc(a)
	}
	for _, e := range out.Evals {
		c.putEval(e)
	}
	if old := c.Eval(out.Eval.ID); old == nil || !sameEval(old, out.Eval) {
		out.Eval.SnapshotIndex = c.Index()
		c.putEval(out.Eval)
	}
	c.touch(JobKey{out.Eval.Namespace, out.Eval.JobID})
}

// sameEval tells whether a blocked evaluation is as blocked as before.
func sameEval(a, b *api.Evaluation) bool {
	return a.Status == b.Status && reflect.DeepEqual(a.QueuedAllocations, b.QueuedAllocations) && reflect.DeepEqual(a.FailedTGAllocs, b.FailedTGAllocs)
}

// watchDeployment sees to it that a deployment is looked at in time.
func (c *change) watchDeployment(d *api.Deployment) {
	id, first := d.ID, time.Time{}
	if d.Status == api.DeploymentStatusRunning {
		for _, state := range d.TaskGroups {
			if at := state.RequireProgressBy; !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	c.later(func() { c.s.deadlines.set(id, first) })
}

// evaluateDue processes a pending evaluation whose time has come.
func (c *change) evaluateDue(id string) {
	if e := c.Eval(id); e != nil && e.Status == api.EvalStatusPending && !e.WaitUntil.After(c.now) {
		c.resume(e)
	} else {
		c.later(func() { c.s.delayed.set(id, time.Time{}) })
	}
}

// retryBlocked tries all blocked evaluations, the most important and then the
// oldest first.
func (c *change) retryBlocked() {
	c.s.mu.Lock()
	var evals []*api.Evaluation
	for id := range c.s.blocked {
		if e := c.Eval(id); e != nil && e.Status == api.EvalStatusBlocked {
			evals = append(evals, e)
		} else {
			delete(c.s.blocked, id)
		}
	}
	c.s.mu.Unlock()
	slices.SortFunc(evals, func(a, b *api.Evaluation) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range evals {
		if e = c.Eval(e.ID); e.Status == api.EvalStatusBlocked {
			c.resume(e)
		}
	}
}

// resume processes an evaluation that has waited. Its job may be gone, but not
// because somebody has purged it: that has ended its evaluations.
func (c *change) resume(e *api.Evaluation) {
	if c.Job(JobKey{e.Namespace, e.JobID}) != nil {
		c.evaluate(e)
		return
	}
	ended := *e
	ended.Status, ended.StatusDescription = api.EvalStatusCancelled, "the job is gone"
	ended.ModifyTime = c.now.UnixNano()
	c.putEval(&ended)
}

// maxRounds is how often a job may be brought up to date in one change. Each time
// leads to less that is left to do; three are the most that simulations have seen.
// A plan that does not come to an end would stop everything else.
const maxRounds = 20

func (c *change) settleAll() {
	rounds := make(map[JobKey]int)
	for len(c.touched) > 0 {
		key := c.touched[0]
		c.touched = c.touched[1:]
		if rounds[key]++; rounds[key] > maxRounds {
			c.s.logger.Error("job does not settle", "job_id", key.ID)
			continue
		}
		c.settle(key)
	}
}

// settle brings a job up to date: its deployment, what has failed, its status.
func (c *change) settle(key JobKey) {
	job := c.Job(key)
	if job == nil {
		c.settlePurged(key)
		return
	}
	c.judge(job)
	if job = c.Job(key); c.failureOpen(job) {
		c.evaluateQuietly(job, triggerAllocFailed)
	}
	c.setStatus(key)
}

// settlePurged forgets allocations of a job that is gone when they have ended.
func (c *change) settlePurged(key JobKey) {
	for _, a := range c.AllocsOfJob(key) {
		if c.Ended(a.ID) {
			c.deleteAlloc(a)
		}
	}
}

func (c *change) deleteAlloc(a *api.Allocation) {
	c.wroteAllocs = true
	c.room.Remove(a)
	c.DeleteAlloc(a.ID)
}

// failureOpen tells whether an allocation failed and nobody has decided about it.
func (c *change) failureOpen(job *api.Job) bool {
	if fates[*job.Type][api.AllocClientStatusFailed] != retry || *job.Stop {
		return false
	}
	for _, a := range c.AllocsOfJob(KeyOf(job)) {
		if a.ClientStatus != api.AllocClientStatusFailed || a.DesiredStatus != api.AllocDesiredStatusRun || a.NextAllocation != "" {
			continue
		}
		if e := c.Eval(a.FollowupEvalID); a.FollowupEvalID == "" || e == nil || !model.EvalActive(e) {
			return true
		}
	}
	return false
}

// judge looks at the deployment of a job and does what must be done about it.
func (c *change) judge(job *api.Job) {
	key := KeyOf(job)
	d := LatestDeployment(c, key)
	if d == nil || !model.DeploymentActive(d) || d.JobCreateIndex != *job.CreateIndex || d.JobVersion != *job.Version {
		return
	}
	v := Judge(d, job, c.AllocsOfJob(key), c.now)
	c.applyVerdict(job, d, v, v.Deployment != nil && v.Deployment.Status != d.Status)
}

// applyVerdict stores what has become of a deployment. An evaluation follows:
// one that leaves a trace if that is asked for.
func (c *change) applyVerdict(job *api.Job, d *api.Deployment, v Verdict, loud bool) (evalID string) {
	for _, a := range v.Allocs {
		c.putAlloc(a)
	}
	trigger := triggerDeployment
	if next := v.Deployment; next != nil {
		if next.Status == api.DeploymentStatusFailed && d.Status != next.Status {
			if reverted := c.rollBack(job, next); reverted != nil {
				job = reverted
			}
		}
		c.PutDeployment(next)
		if next.Status == api.DeploymentStatusSuccessful {
			c.markStable(JobKey{d.Namespace, d.JobID}, d.JobVersion, true)
		}
	}
	id := d.ID
	c.later(func() { c.s.deadlines.set(id, v.Deadline) })
	switch {
	case loud:
		eval := c.newEval(job, trigger)
		eval.DeploymentID = d.ID
		c.evaluate(eval)
		return eval.ID
	case v.Evaluate:
		c.evaluateQuietly(job, trigger)
	}
	return ""
}

// markStable sets the flag of one version of a job, and tells whether there is
// such a version.
func (c *change) markStable(key JobKey, version uint64, stable bool) bool {
	for _, job := range c.JobVersions(key) {
		if *job.Version != version {
			continue
		}
		if deref(job.Stable) != stable {
			copied := *job
			copied.Stable = &stable
			c.PutJobVersion(&copied)
		}
		return true
	}
	return false
}

// rollBack completes the description of a failed deployment. If it says so, the
// latest stable version becomes a new one, which is returned.
func (c *change) rollBack(job *api.Job, d *api.Deployment) *api.Job {
	revert := false
	for _, state := range d.TaskGroups {
		revert = revert || state.AutoRevert
	}
	if !revert {
		return nil
	}
	stable := c.stableBefore(job)
	switch {
	case stable == nil:
		d.StatusDescription = fmt.Sprintf(model.DeploymentNothingToRevert, d.StatusDescription)
		return nil
	case sameButStop(stable, job):
		d.StatusDescription = fmt.Sprintf(model.DeploymentSameSpec, d.StatusDescription, *stable.Version)
		return nil
	}
	d.StatusDescription = fmt.Sprintf(model.DeploymentRollsBack, d.StatusDescription, *stable.Version)
	return c.putVersionAgain(stable, job)
}

// stableBefore returns the latest stable version of a job before this one.
func (c *change) stableBefore(job *api.Job) *api.Job {
	for _, v := range c.JobVersions(KeyOf(job)) {
		if deref(v.Stable) && *v.Version < *job.Version {
			return v
		}
	}
	return nil
}

func sameButStop(a, b *api.Job) bool {
	c := *a
	c.Stop = b.Stop
	return model.SameSpec(&c, b)
}

// setStatus brings the status of a job up to date.
func (c *change) setStatus(key JobKey) {
	job := c.Job(key)
	evals := c.EvalsOfJob(key)
	status := model.JobStatus(job, c.AllocsOfJob(key), evals, c.DeploymentsOfJob(key))
	if status == model.JobPending && len(evals) == 0 && deref(job.Status) != model.JobPending {
		status = model.JobDead // they have been collected
	}
	if deref(job.Status) == status {
		return
	}
	copied := *job
	copied.Status = &status
	c.PutJob(&copied)
}
