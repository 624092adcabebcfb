package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// RequestErrorKind is the reason for which a request was rejected.
type RequestErrorKind uint8

const (
	RequestRefused  RequestErrorKind = iota // the current state does not permit the request
	RequestInvalid                          // the request itself is invalid
	RequestNotFound                         // a named object does not exist
)

// RequestError is a rejected request's error. Its text is the same as in Nomad.
type RequestError struct {
	Kind RequestErrorKind
	Text string
}

func (e *RequestError) Error() string { return e.Text }

func requestErrorf(kind RequestErrorKind, format string, args ...any) error {
	return &RequestError{kind, fmt.Sprintf(format, args...)}
}

// RegisterOptions are RegisterAndEvaluateJob's options.
type RegisterOptions struct {
	// EnforceIndex makes RegisterAndEvaluateJob reject the job unless the stored job has the index JobModifyIndex. If
	// JobModifyIndex is zero, no such job may be stored.
	EnforceIndex   bool
	JobModifyIndex uint64
	// PreserveCounts keeps the stored job's group counts, and PreserveResources the resources of its tasks.
	PreserveCounts, PreserveResources bool
	// EvalPriority is the evaluation's priority; zero means the job's priority.
	EvalPriority int
	Submission   *api.JobSubmission
}

// RequestOutcome is the result of a request to change a job, an allocation or a deployment.
type RequestOutcome struct {
	// EvalID is empty if no evaluation was necessary.
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	// ChildJobID is the launched or dispatched child job's id.
	ChildJobID          string
	ChildJobCreateIndex uint64
	// Only deployment requests set the next two fields.
	DeploymentModifyIndex uint64
	RevertedToJobVersion  *uint64

	Index uint64
}

// RegisterAndEvaluateJob stores a job, or a new version if its spec has changed, and evaluates the job. The job must be
// canonical, and package admission must have accepted it. The caller must not modify the job after the call. The error
// is from model.Validate, or a RequestError, or an error of the store.
func (s *Scheduler) RegisterAndEvaluateJob(ctx context.Context, job *api.Job, o RegisterOptions) (out RequestOutcome, err error) {
	if err := checkEvalPriority(o.EvalPriority); err != nil {
		return RequestOutcome{}, err
	}
	if err := s.store.CheckDiskSpaceForNewObjects(); err != nil {
		return RequestOutcome{}, err
	}
	env := s.newPreparedEnv()
	env.expectPlacementsOfJob(job, s.store.Snapshot().Job(nil, *job.Namespace, *job.ID))
	failpoint.Hit(failpoint.StepJobAccepted, failpoint.PhaseBefore)
	out.Index, err = s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		old := c.tx.Job(nil, *job.Namespace, *job.ID)
		if err := checkEnforcedModifyIndex(old, o); err != nil {
			return err
		}
		next := withPreservedCountsAndResources(job, old, o)
		// The caller has not validated the job together with the preserved counts and resources. Its namespace may have
		// been deleted, or have got other capabilities, since the caller validated it.
		namespace := c.tx.Namespace(nil, *job.Namespace)
		if next != job || namespace == nil && *job.Namespace != api.DefaultNamespace || namespace != nil && namespace.Capabilities != nil {
			if err := validateJob(next, c.scheduler.limits.jobs, c.tx.Reader); err != nil {
				return err
			}
		}
		if old != nil {
			if err := model.ValidateJobUpdate(old, next); err != nil {
				return requestErrorf(RequestRefused, "%v", err)
			}
		}
		stored := jobVersions{c}.registerVersionIfChanged(next, old, o.Submission)
		c.evaluateUnlessParentJob(&out, stored, triggerRegister, o.EvalPriority)
		failpoint.Hit(failpoint.StepJobAccepted, failpoint.PhaseDuring)
		return nil
	})
	failpoint.Hit(failpoint.StepJobAccepted, failpoint.PhaseAfter)
	return out, err
}

// checkEvalPriority checks an evaluation's priority; zero is valid.
func checkEvalPriority(priority int) error {
	if priority < 0 || priority > 100 {
		return requestErrorf(RequestInvalid, "eval priority must be between 1 and 100 inclusively")
	}
	return nil
}

// validateJob validates a canonical job. It does not call model.Canonicalize, which would write to parts shared with a stored
// job that other goroutines read.
func validateJob(job *api.Job, limits model.JobLimits, state store.Reader) error {
	return model.Validate(job, limits, state.Namespaces(nil, "")...)
}

// checkEnforcedModifyIndex checks the option EnforceIndex against old, the stored job or nil.
func checkEnforcedModifyIndex(old *api.Job, o RegisterOptions) error {
	want := o.JobModifyIndex
	switch {
	case !o.EnforceIndex:
	case old == nil && want != 0:
		return requestErrorf(RequestRefused, "Enforcing job modify index %d: job does not exist", want)
	case old != nil && want == 0:
		return requestErrorf(RequestRefused, "Enforcing job modify index 0: job already exists")
	case old != nil && want != *old.JobModifyIndex:
		return requestErrorf(RequestRefused, "Enforcing job modify index %d: job exists with conflicting job modify index: %d", want, *old.JobModifyIndex)
	}
	return nil
}

// withPreservedCountsAndResources returns the new job, or a copy with the old job's counts or resources if the options request
// it.
func withPreservedCountsAndResources(job, old *api.Job, o RegisterOptions) *api.Job {
	if old == nil || !o.PreserveCounts && !o.PreserveResources {
		return job
	}
	c := *job
	c.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range c.TaskGroups {
		before := model.FindGroup(old, *g.Name)
		if before == nil {
			continue
		}
		group := *g
		if o.PreserveCounts {
			group.Count = before.Count
		}
		if o.PreserveResources {
			group.Tasks = slices.Clone(g.Tasks)
			for k, t := range group.Tasks {
				if at := slices.IndexFunc(before.Tasks, func(b *api.Task) bool { return b.Name == t.Name }); at >= 0 {
					task := *t
					task.Resources = before.Tasks[at].Resources
					group.Tasks[k] = &task
				}
			}
		}
		c.TaskGroups[i] = &group
	}
	return &c
}

// evaluateUnlessParentJob evaluates a changed job and sets the indexes and the evaluation in out. Periodic and parameterized
// jobs, which have no allocations, are not evaluated. If evalPriority is zero, the job's priority applies.
func (t *schedulerTxn) evaluateUnlessParentJob(out *RequestOutcome, job *api.Job, trigger string, evalPriority int) {
	out.JobModifyIndex = *job.ModifyIndex
	t.reconcileJobAtTxnEnd(JobKeyOf(job))
	if model.CanHaveChildren(job) {
		return
	}
	eval := t.newPendingEval(job, trigger)
	if trigger == triggerDeregister {
		eval.Type = api.JobTypeService // Nomad sets the type service when any job is deregistered
	}
	if evalPriority != 0 {
		eval.Priority = evalPriority
	}
	t.processEval(eval)
	out.EvalID, out.EvalCreateIndex = eval.ID, t.tx.Index()
}

// DeregisterOptions are DeregisterJob's options.
type DeregisterOptions struct {
	// Purge also deletes the job.
	Purge bool
	// EvalPriority is the evaluation's priority; zero means the job's priority.
	EvalPriority    int
	NoShutdownDelay bool
}

// DeregisterJob stops a job. A missing job is not an error.
func (s *Scheduler) DeregisterJob(ctx context.Context, key JobKey, o DeregisterOptions) (out RequestOutcome, err error) {
	if err := checkEvalPriority(o.EvalPriority); err != nil {
		return RequestOutcome{}, err
	}
	index, err := s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		old := c.tx.Job(nil, key.Namespace, key.ID)
		if old == nil {
			return nil
		}
		if o.NoShutdownDelay {
			c.skipShutdownDelays(key)
		}
		job := old
		switch {
		case o.Purge:
			c.setEventOperation(opJobDeregistered)
			jobVersions{c}.deleteJob(key)
		case !pointer.Value(old.Stop):
			stopped := *old
			stopped.Stop = new(true)
			job = jobVersions{c}.putNewVersion(&stopped, old, c.tx.JobSubmission(nil, key.Namespace, key.ID, *old.Version))
		}
		c.evaluateUnlessParentJob(&out, job, triggerDeregister, o.EvalPriority)
		return nil
	})
	if err == nil && out.JobModifyIndex != 0 {
		out.Index = index
	}
	return out, err
}

// skipShutdownDelays makes a job's tasks stop without their shutdown_delay.
func (t *schedulerTxn) skipShutdownDelays(key JobKey) {
	for _, a := range t.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if !model.AllocTerminal(a) {
			copied := *a
			copied.DesiredTransition.NoShutdownDelay = new(true)
			t.putAllocAndUpdateNodeUsage(&copied)
		}
	}
}

// EvaluateJob creates and processes a job evaluation. With forceReschedule, it replaces failed allocations even if their
// reschedule policy does not allow it.
func (s *Scheduler) EvaluateJob(ctx context.Context, key JobKey, forceReschedule bool) (out RequestOutcome, err error) {
	out.Index, err = s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		job := c.tx.Job(nil, key.Namespace, key.ID)
		switch {
		case job == nil:
			return requestErrorf(RequestNotFound, "job not found")
		case job.Periodic != nil:
			return requestErrorf(RequestRefused, "can't evaluate periodic job")
		case job.IsParameterized():
			return requestErrorf(RequestRefused, "can't evaluate parameterized job")
		}
		if forceReschedule {
			c.forceRescheduleOfFailedAllocs(key)
		}
		c.evaluateUnlessParentJob(&out, job, triggerRegister, 0)
		return nil
	})
	return out, err
}

func (t *schedulerTxn) forceRescheduleOfFailedAllocs(key JobKey) {
	for _, a := range t.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if a.ClientStatus == api.AllocClientStatusFailed && isDesiredRunAndUnreplaced(a) {
			copied := *a
			copied.DesiredTransition.ForceReschedule = new(true)
			t.putAllocAndUpdateNodeUsage(&copied)
		}
	}
}

// DryRunRegister returns the changes that RegisterAndEvaluateJob would make, and the stored job or nil. It stores nothing. As
// for RegisterAndEvaluateJob, the job must be canonical, and package admission must have accepted it, and DryRunRegister waits
// for plugins that are starting. An error is ctx's cause.
func (s *Scheduler) DryRunRegister(ctx context.Context, job *api.Job) (changes PlanChanges, stored *api.Job, err error) {
	starting := s.arePluginsStarting() // before the snapshot, which then has the complete node if the result is false
	state := s.store.Snapshot()
	node := PlacementNodeOf(state.Node(nil, s.nodeID))
	changes, stored = s.planRegistration(job, state, node)
	if !starting || !couldStartingPluginsHelp(changes, node) {
		return changes, stored, nil
	}
	if err := s.waitForFirstPluginReports(ctx); err != nil {
		return PlanChanges{}, nil, err
	}
	state = s.store.Snapshot()
	changes, stored = s.planRegistration(job, state, PlacementNodeOf(state.Node(nil, s.nodeID)))
	return changes, stored, nil
}

// planRegistration returns DryRunRegister's result for a state and its node.
func (s *Scheduler) planRegistration(job *api.Job, state *store.Snapshot, node PlacementNode) (changes PlanChanges, stored *api.Job) {
	key := JobKeyOf(job)
	index := state.LatestTableIndex(nil, store.Allocations) + 1
	version, created := uint64(0), index
	next, old := *job, state.Job(nil, key.Namespace, key.ID)
	if old != nil {
		version, created = *old.Version, *old.CreateIndex
		if !model.SameSpec(old, job) {
			version++
		}
	}
	next.Version, next.CreateIndex, next.ModifyIndex, next.JobModifyIndex = &version, &created, &index, &index
	return Plan(PlanInput{
		Eval: &api.Evaluation{
			ID: s.hostEnv.NewID(), Namespace: key.Namespace, JobID: key.ID, Type: *job.Type, Priority: *job.Priority,
			TriggeredBy: triggerRegister, Status: api.EvalStatusPending,
		},
		Job:              &next,
		JobAllocs:        state.WithoutEndedEvents().AllocationsByJob(nil, key.Namespace, key.ID),
		JobEvals:         state.EvaluationsByJob(nil, key.Namespace, key.ID),
		LatestDeployment: state.LatestDeployment(nil, key.Namespace, key.ID),
		Node:             node,
		NodeUsage:        NodeUsageOf(state.Reader, node),
		Env:              s.hostEnv,
		Now:              s.hostEnv.Now(),

		MemoryOversubscription: state.SchedulerConfig(nil).MemoryOversubscriptionEnabled,
		PreemptibleAllocs:      preemptibleAllocsFunc(state.Reader, &next),
		Volumes:                hostVolumeStateOf(state.Reader),
	}), old
}

// newChildJob copies a periodic or parameterized job and gives it the id childID. The caller may modify the copy.
func newChildJob(parent *api.Job, childID string) *api.Job {
	c := *parent
	c.ID, c.Name, c.ParentID = &childID, &childID, parent.ID
	c.Meta = maps.Clone(parent.Meta)
	c.Stop, c.VersionTag = new(false), nil
	c.TaskGroups = slices.Clone(parent.TaskGroups)
	for i, g := range c.TaskGroups {
		if g.Scaling == nil {
			continue
		}
		group, scaling := *g, *g.Scaling
		scaling.Target = maps.Clone(scaling.Target)
		scaling.Target["Job"] = childID
		scaling.ID = model.ScalingPolicyID(*parent.Namespace, childID, *g.Name)
		group.Scaling = &scaling
		c.TaskGroups[i] = &group
	}
	return &c
}
