package scheduler

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
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
	room *NodeUsage
	op   string // the current operation

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
		clock := s.clock.read(s.host)
		c = &change{Tx: tx, s: s, now: clock.now}
		c.Operation(opEvaluation)
		c.takeRoom()
		if clock.adjust {
			c.adjust(clock)
			c.Operation(opEvaluation)
		}
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

// Operation implements Tx.
func (c *change) Operation(name string) {
	c.op = name
	c.Tx.Operation(name)
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
		s.room = NodeUsageOf(c, c.node)
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

// markDirty brings a job up to date at the end of the change.
func (c *change) markDirty(key JobKey) {
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
	c.apply(eval, c.plan(eval))
}

// evaluateQuietly leaves no trace if there is nothing to do.
func (c *change) evaluateQuietly(eval *api.Evaluation) {
	out := c.plan(eval)
	if len(out.Place)+len(out.Update)+len(out.Deployments) > 0 ||
		len(out.Eval.FailedTGAllocs) > 0 && !c.isBlocked(JobKey{eval.Namespace, eval.JobID}) {
		c.apply(eval, out)
	}
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

// evalOperations are the operations that may create an evaluation; others leave that
// to an operation of its own.
var evalOperations = map[string]bool{opJobRegistered: true, opJobDeregistered: true, opAllocStop: true}

// apply stores what was planned for an evaluation. One change here is what Nomad does
// in three: the evaluation is created, the plan is applied, the evaluation is
// completed. Its events are those of the three.
func (c *change) apply(eval *api.Evaluation, out Changes) {
	pending := *eval
	pending.ModifyIndex = c.Index()
	if c.Eval(eval.ID) == nil {
		if !evalOperations[c.op] {
			c.Operation(opEvaluation)
		}
		c.AnnounceEval(&pending)
	}
	planned := len(out.Deployments)+len(out.Update)+len(out.Place) > 0
	if planned {
		c.Operation(opPlan)
	}
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
	if planned {
		c.AnnounceEval(&pending)
	}
	c.Operation(opEvaluation)
	for _, e := range out.Evals {
		c.putEval(e)
	}
	if old := c.Eval(out.Eval.ID); old == nil || !sameEval(old, out.Eval) {
		out.Eval.SnapshotIndex = c.Index()
		c.putEval(out.Eval)
	}
	if planned {
		c.Operation(opPlan) // the status of the job follows from the allocations
	}
	c.markDirty(JobKey{out.Eval.Namespace, out.Eval.JobID})
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
