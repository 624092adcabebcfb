package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

var zeroTime time.Time

// isActivePeriodic reports whether a job is launched by its schedule: it is periodic, enabled and not stopped.
func isActivePeriodic(job *api.Job) bool {
	p := job.Periodic
	return p != nil && pointer.Value(p.Enabled) && !pointer.Value(job.Stop) && !job.IsParameterized()
}

// childJobLauncher is a schedulerTxn for creating the children of periodic and parameterized jobs.
type childJobLauncher struct{ *schedulerTxn }

// setLaunchTimer sets the timer for the next launch of a periodic job. If launches were missed while no scheduler ran, the
// timer expires at once, and the job is launched once. For other jobs it removes the timer.
func (c childJobLauncher) setLaunchTimer(job *api.Job) {
	key, at := JobKeyOf(job), zeroTime
	if isActivePeriodic(job) {
		last := lastPeriodicLaunchTime(c.tx.Reader, key)
		if last.IsZero() {
			last = c.now
		}
		at = model.NextPeriodicLaunch(job, last)
	}
	c.tx.OnCommit(func() { c.scheduler.periodicLaunchTimers.setOrClearDueTime(key, at) })
}

// launchDuePeriodicJob launches a periodic job after its timer has expired, and sets the timer for the next launch. It skips
// the launch if prohibit_overlap is set and a child is active.
func (c childJobLauncher) launchDuePeriodicJob(key JobKey) {
	job := c.tx.Job(nil, key.Namespace, key.ID)
	if job == nil || !isActivePeriodic(job) {
		c.tx.OnCommit(func() { c.scheduler.periodicLaunchTimers.setOrClearDueTime(key, zeroTime) })
		return
	}
	if !pointer.Value(job.Periodic.ProhibitOverlap) || !c.hasActiveChildren(key) {
		c.launchPeriodicChild(job)
	} else {
		c.scheduler.logger.Info("periodic launch skipped: the one before is still at work", "job_id", key.ID)
	}
	c.recordLaunchNow(key)
	next := model.NextPeriodicLaunch(job, c.now)
	c.tx.OnCommit(func() { c.scheduler.periodicLaunchTimers.setOrClearDueTime(key, next) })
}

// recordLaunchNow stores the current time as a periodic job's last launch.
func (c childJobLauncher) recordLaunchNow(key JobKey) {
	c.tx.PutPeriodicLaunch(&store.PeriodicLaunch{Namespace: key.Namespace, JobID: key.ID, LaunchTime: c.now})
}

// hasActiveChildren reports whether a job's child is pending or running.
func (c childJobLauncher) hasActiveChildren(key JobKey) bool {
	return slices.ContainsFunc(c.tx.JobChildren(nil, key.Namespace, key.ID), func(child *api.Job) bool {
		key := JobKeyOf(child)
		return slices.ContainsFunc(c.tx.EvaluationsByJob(nil, key.Namespace, key.ID), model.IsEvalPendingOrBlocked) ||
			slices.ContainsFunc(c.tx.AllocationsByJob(nil, key.Namespace, key.ID), func(a *api.Allocation) bool { return !model.AllocTerminal(a) })
	})
}

// launchPeriodicChild creates and evaluates a periodic job's child. The child's id contains the current second, or the next
// second for which no child exists.
func (c childJobLauncher) launchPeriodicChild(job *api.Job) (evalID string) {
	at := c.now.Unix()
	id := func() string { return fmt.Sprintf("%s/periodic-%d", *job.ID, at) }
	for c.tx.Job(nil, *job.Namespace, id()) != nil {
		at++
	}
	next := newChildJob(job, id())
	next.Periodic = nil
	var out RequestOutcome
	c.evaluateUnlessParentJob(&out, jobVersions(c).putNewVersion(next, nil, nil), triggerPeriodic, 0)
	return out.EvalID
}

// ForceLaunchPeriodicJob launches a periodic job now, whatever its schedule is and even if prohibit_overlap
// is set and a child is running.
func (s *Scheduler) ForceLaunchPeriodicJob(ctx context.Context, key JobKey) (out RequestOutcome, err error) {
	out.Index, err = s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		job := c.tx.Job(nil, key.Namespace, key.ID)
		switch {
		case job == nil:
			return requestErrorf(RequestNotFound, "job not found")
		case job.Periodic == nil || job.IsParameterized():
			return requestErrorf(RequestRefused, "can't force launch non-periodic job")
		case pointer.Value(job.Stop):
			return requestErrorf(RequestRefused, "can't force launch job %q: it is stopped", key.ID)
		case !pointer.Value(job.Periodic.Enabled):
			return requestErrorf(RequestRefused, "can't force launch job %q: set enabled = true in its periodic block", key.ID)
		}
		out.EvalID, out.EvalCreateIndex = childJobLauncher{c}.launchPeriodicChild(job), c.tx.Index()
		return nil
	})
	return out, err
}

// maxPayload is a dispatch payload's maximum size in bytes.
const maxPayload = 16 << 10

// DispatchRequest is the request to create a parameterized job's child.
type DispatchRequest struct {
	Payload          []byte
	Meta             map[string]string
	IDPrefix         string
	Priority         int // zero means the parent's priority
	IdempotencyToken string
}

// DispatchJob creates and evaluates a parameterized job's child. If a child has the same idempotency token, even if it has ended,
// DispatchJob returns that child and creates none, until it is garbage-collected.
func (s *Scheduler) DispatchJob(ctx context.Context, key JobKey, r DispatchRequest) (out RequestOutcome, err error) {
	if err := s.store.CheckDiskSpaceForNewObjects(); err != nil {
		return RequestOutcome{}, err
	}
	env := s.newPreparedEnv()
	if parent := s.store.Snapshot().Job(nil, key.Namespace, key.ID); parent != nil {
		env.expectPlacementsOfChildJob(parent)
	}
	index, err := s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		parent := c.tx.Job(nil, key.Namespace, key.ID)
		if parent == nil {
			return requestErrorf(RequestNotFound, "parameterized job not found")
		}
		if err := CheckDispatch(parent, s.limits.jobs, r); err != nil {
			return err
		}
		if known := (childJobLauncher{c}).findChildByIdempotencyToken(key, r.IdempotencyToken); known != nil {
			out.ChildJobID, out.ChildJobCreateIndex = *known.ID, *known.CreateIndex
			return nil
		}
		job := jobVersions{c}.putNewVersion(childJobLauncher{c}.newDispatchedChild(parent, r), nil, nil)
		c.evaluateUnlessParentJob(&out, job, triggerRegister, 0)
		out.ChildJobID, out.ChildJobCreateIndex = *job.ID, c.tx.Index()
		return nil
	})
	out.Index = index
	return out, err
}

// CheckDispatch returns DispatchJob's RequestError for rejecting a request for this job, or nil.
func CheckDispatch(job *api.Job, limits model.JobLimits, r DispatchRequest) error {
	maxPriority := limits.WithDefaults().MaxPriority
	switch {
	case !job.IsParameterized():
		return requestErrorf(RequestRefused, "Specified job %q is not a parameterized job", pointer.Value(job.ID))
	case pointer.Value(job.Stop):
		return requestErrorf(RequestRefused, "Specified job %q is stopped", pointer.Value(job.ID))
	case r.Priority != 0 && (r.Priority < 1 || r.Priority > maxPriority):
		return requestErrorf(RequestRefused, "dispatch job priority must be between [1, %d]", maxPriority)
	}
	p := job.ParameterizedJob
	switch {
	case p.Payload == "required" && len(r.Payload) == 0:
		return requestErrorf(RequestRefused, "Payload is not provided but required by parameterized job")
	case p.Payload == "forbidden" && len(r.Payload) > 0:
		return requestErrorf(RequestRefused, "Payload provided but forbidden by parameterized job")
	case len(r.Payload) > maxPayload:
		return requestErrorf(RequestRefused, "Payload exceeds maximum size; %d > %d", len(r.Payload), maxPayload)
	}
	var unknownMeta, missingMeta []string
	for name := range r.Meta {
		if !slices.Contains(p.MetaRequired, name) && !slices.Contains(p.MetaOptional, name) {
			unknownMeta = append(unknownMeta, name)
		}
	}
	for _, name := range p.MetaRequired {
		if _, ok := r.Meta[name]; !ok {
			missingMeta = append(missingMeta, name)
		}
	}
	slices.Sort(unknownMeta)
	switch {
	case len(unknownMeta) > 0:
		return requestErrorf(RequestRefused, "Dispatch request included unpermitted metadata keys: %v", unknownMeta)
	case len(missingMeta) > 0:
		return requestErrorf(RequestRefused, "Dispatch did not provide required meta keys: %v", missingMeta)
	}
	return nil
}

// findChildByIdempotencyToken returns the child with the idempotency token, or nil. It returns nil for an empty token.
func (c childJobLauncher) findChildByIdempotencyToken(parent JobKey, token string) *api.Job {
	if token == "" {
		return nil
	}
	for _, job := range c.tx.JobChildren(nil, parent.Namespace, parent.ID) {
		if pointer.Value(job.DispatchIdempotencyToken) == token {
			return job
		}
	}
	return nil
}

func (c childJobLauncher) newDispatchedChild(parent *api.Job, r DispatchRequest) *api.Job {
	var job *api.Job
	for {
		parts := []string{"dispatch"}
		if r.IDPrefix != "" {
			parts = append(parts, r.IDPrefix)
		}
		parts = append(parts, fmt.Sprint(c.now.Unix()), c.env.takeIDOrPlaceholder()[:8])
		job = newChildJob(parent, *parent.ID+"/"+strings.Join(parts, "-"))
		if c.tx.Job(nil, *job.Namespace, *job.ID) == nil {
			break
		}
	}
	job.DispatchIdempotencyToken = &r.IdempotencyToken
	if r.Priority != 0 {
		job.Priority = &r.Priority
	}
	SetDispatchPayloadAndMeta(job, r)
	return job
}

// SetDispatchPayloadAndMeta sets a dispatch request's payload and metadata in a copy of a parameterized job. It writes to the
// map job.Meta.
func SetDispatchPayloadAndMeta(job *api.Job, r DispatchRequest) {
	job.Dispatched = true
	job.Payload = r.Payload
	if job.Meta == nil && len(r.Meta) > 0 {
		job.Meta = make(map[string]string, len(r.Meta))
	}
	maps.Copy(job.Meta, r.Meta)
}
