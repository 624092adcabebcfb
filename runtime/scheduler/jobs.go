package scheduler

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Kind says what sort of refusal an error is.
type Kind uint8

const (
	Refused  Kind = iota // the state does not allow it
	Invalid              // the request is wrong in itself
	NotFound             // what it names is not there
)

// RequestError is why a request was refused. Its text is the one that clients of
// Nomad know.
type RequestError struct {
	Kind Kind
	Text string
}

func (e *RequestError) Error() string { return e.Text }

func refuse(kind Kind, format string, args ...any) error {
	return &RequestError{kind, fmt.Sprintf(format, args...)}
}

// keptVersions is how many versions of a job are kept, beside those with a tag
// and the newest stable one.
const keptVersions = 6

// RegisterOptions are the parts of a registration beside the job.
type RegisterOptions struct {
	// EnforceIndex refuses the job unless the stored one has this JobModifyIndex;
	// zero means that there must be none.
	EnforceIndex   bool
	JobModifyIndex uint64
	// PreserveCounts and PreserveResources keep what groups and tasks that exist
	// already have.
	PreserveCounts, PreserveResources bool
	// EvalPriority is the priority of the evaluation, zero for that of the job.
	EvalPriority int
	Submission   *api.JobSubmission
}

// Outcome is what a request has led to.
type Outcome struct {
	// EvalID is empty if there was nothing to evaluate.
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	// JobID is the job that was launched or dispatched.
	JobID          string
	JobCreateIndex uint64
	// Deployment verbs only.
	DeploymentModifyIndex uint64
	RevertedJobVersion    *uint64

	Warnings []string
	Index    uint64
}

// Register stores a job, a new version of one, or evaluates an unchanged one. The
// job may be in any form; it belongs to the scheduler from now on. The error is
// that of model.Validate, or a RequestError.
func (s *Scheduler) Register(ctx context.Context, job *api.Job, o RegisterOptions) (Outcome, error) {
	if err := prepare(job, s.store.View()); err != nil {
		return Outcome{}, err
	}
	if o.EvalPriority != 0 && (o.EvalPriority < 1 || o.EvalPriority > 100) {
		return Outcome{}, refuse(Invalid, "eval priority must be between 1 and 100 inclusively")
	}
	out := Outcome{Warnings: model.Warnings(job)}
	failpoint.Reach(failpoint.JobAccepted, failpoint.Before)
	var err error
	out.Index, err = s.update(ctx, func(c *change) error {
		old := c.Job(KeyOf(job))
		if err := enforce(old, o); err != nil {
			return err
		}
		next := preserve(job, old, o)
		if next != job || *job.Namespace != api.DefaultNamespace { // it may be gone by now
			if err := prepare(next, c); err != nil {
				return err
			}
		}
		if old != nil {
			if err := model.TransitionFault(old, next); err != nil {
				return refuse(Refused, "%v", err)
			}
		}
		stored := c.register(next, old, o.Submission)
		c.outcome(&out, stored, triggerRegister, o.EvalPriority)
		failpoint.Reach(failpoint.JobAccepted, failpoint.During)
		return nil
	})
	failpoint.Reach(failpoint.JobAccepted, failpoint.After)
	return out, err
}

func prepare(job *api.Job, state State) error {
	model.Canonicalize(job)
	return model.Validate(job, state.Namespaces()...)
}

func enforce(old *api.Job, o RegisterOptions) error {
	want := o.JobModifyIndex
	switch {
	case !o.EnforceIndex:
	case old == nil && want != 0:
		return refuse(Refused, "Enforcing job modify index %d: job does not exist", want)
	case old != nil && want == 0:
		return refuse(Refused, "Enforcing job modify index 0: job already exists")
	case old != nil && want != *old.JobModifyIndex:
		return refuse(Refused, "Enforcing job modify index %d: job exists with conflicting job modify index: %d", want, *old.JobModifyIndex)
	}
	return nil
}

// preserve returns the job, or a copy that keeps what the old one has.
func preserve(job, old *api.Job, o RegisterOptions) *api.Job {
	if old == nil || !o.PreserveCounts && !o.PreserveResources {
		return job
	}
	c := *job
	c.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range c.TaskGroups {
		before := model.Group(old, *g.Name)
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

// register stores the job as a new version, unless nothing about it is new, and
// returns what is stored.
func (c *change) register(job, old *api.Job, submission *api.JobSubmission) *api.Job {
	if old != nil && model.SameSpec(old, job) {
		// The same job may be written in another way.
		if key := KeyOf(old); submission != nil && !reflect.DeepEqual(submission, c.Submission(key, *old.Version)) {
			c.PutSubmission(key, *old.Version, submission)
		}
		return old
	}
	return c.putVersion(job, old, submission)
}

// putVersion stores a copy of the job as the version after old.
func (c *change) putVersion(job, old *api.Job, submission *api.JobSubmission) *api.Job {
	next := *job
	version, created := uint64(0), c.Index()
	status := model.JobPending
	if old != nil {
		version, created = *old.Version+1, *old.CreateIndex
		status = deref(old.Status)
	}
	next.Version, next.CreateIndex = &version, &created
	next.ModifyIndex, next.JobModifyIndex = new(c.Index()), new(c.Index())
	next.SubmitTime = new(c.now.UnixNano())
	next.Stable, next.Status, next.VersionTag = new(false), &status, nil
	if deref(next.Stop) {
		c.Operation(opJobDeregistered)
	} else {
		c.Operation(opJobRegistered)
	}
	c.PutJob(&next)
	key := KeyOf(&next)
	if submission != nil {
		c.PutSubmission(key, version, submission)
	}
	if periodic(&next) {
		c.PutLaunch(key, c.now)
	}
	c.noteLaunch(&next)
	c.trimVersions(key)
	c.touch(key)
	return &next
}

// putVersionAgain stores an older version as the newest one.
func (c *change) putVersionAgain(version, current *api.Job) *api.Job {
	again := *version
	again.Stop = new(false)
	return c.putVersion(&again, current, c.Submission(KeyOf(version), *version.Version))
}

// trimVersions forgets the oldest versions.
func (c *change) trimVersions(key JobKey) {
	stable := false
	for i, v := range c.JobVersions(key) {
		newest := deref(v.Stable) && !stable
		stable = stable || newest
		if i >= keptVersions && !newest && v.VersionTag == nil {
			c.DeleteJobVersion(key, *v.Version)
		}
	}
}

// outcome evaluates a job that was changed, if it is one that has allocations.
func (c *change) outcome(out *Outcome, job *api.Job, trigger string, priority int) {
	out.JobModifyIndex = *job.ModifyIndex
	c.touch(KeyOf(job))
	if job.Periodic != nil || job.IsParameterized() {
		return
	}
	eval := c.newEval(job, trigger)
	if priority != 0 {
		eval.Priority = priority
	}
	c.evaluate(eval)
	out.EvalID, out.EvalCreateIndex = eval.ID, c.Index()
}

// DeregisterOptions are the parts of a stop beside the job.
type DeregisterOptions struct {
	// Purge removes the job as well.
	Purge bool
	// EvalPriority is the priority of the evaluation, zero for that of the job.
	EvalPriority    int
	NoShutdownDelay bool
}

// Deregister stops a job. One that is not there is no error.
func (s *Scheduler) Deregister(ctx context.Context, key JobKey, o DeregisterOptions) (out Outcome, err error) {
	if o.EvalPriority != 0 && (o.EvalPriority < 1 || o.EvalPriority > 100) {
		return Outcome{}, refuse(Invalid, "eval priority must be between 1 and 100 inclusively")
	}
	index, err := s.update(ctx, func(c *change) error {
		out = Outcome{}
		old := c.Job(key)
		if old == nil {
			return nil
		}
		if o.NoShutdownDelay {
			c.skipShutdownDelays(key)
		}
		job := old
		switch {
		case o.Purge:
			c.Operation(opJobDeregistered)
			c.DeleteJob(key)
			c.later(func() { s.launches.set(key, noTime) })
		case !deref(old.Stop):
			stopped := *old
			stopped.Stop = new(true)
			job = c.putVersion(&stopped, old, c.Submission(key, *old.Version))
		}
		out.JobModifyIndex = *job.ModifyIndex
		c.touch(key)
		if old.Periodic != nil || old.IsParameterized() {
			return nil
		}
		eval := c.newEval(job, triggerDeregister)
		eval.Type = api.JobTypeService // whatever the job's is, as in Nomad
		if o.EvalPriority != 0 {
			eval.Priority = o.EvalPriority
		}
		c.evaluate(eval)
		out.EvalID, out.EvalCreateIndex = eval.ID, c.Index()
		return nil
	})
	if err == nil && (out.JobModifyIndex != 0) {
		out.Index = index
	}
	return out, err
}

func (c *change) skipShutdownDelays(key JobKey) {
	for _, a := range c.AllocsOfJob(key) {
		if !model.Terminal(a) {
			copied := *a
			copied.DesiredTransition.NoShutdownDelay = new(true)
			c.putAlloc(&copied)
		}
	}
}

// Revert makes an older version of a job the newest one. If prior is set, the
// current version must be that one.
func (s *Scheduler) Revert(ctx context.Context, key JobKey, version uint64, prior *uint64) (out Outcome, err error) {
	out.Index, err = s.update(ctx, func(c *change) error {
		current := c.Job(key)
		switch {
		case current == nil:
			return refuse(NotFound, "job %q not found", key.ID)
		case prior != nil && *prior != *current.Version:
			return refuse(Refused, "Current job has version %d; enforcing version %d", *current.Version, *prior)
		case *current.Version == version:
			return refuse(Refused, "can't revert to current version")
		}
		old := c.version(key, version)
		if old == nil {
			return refuse(NotFound, "job %q in namespace %q at version %d not found", key.ID, key.Namespace, version)
		}
		job, again := current, *old
		again.Stop = new(false)
		if !model.SameSpec(&again, current) {
			job = c.putVersionAgain(old, current)
		}
		c.outcome(&out, job, triggerRegister, 0)
		return nil
	})
	return out, err
}

func (c *change) version(key JobKey, version uint64) *api.Job {
	for _, v := range c.JobVersions(key) {
		if *v.Version == version {
			return v
		}
	}
	return nil
}

// SetStable marks a version of a job as stable or not.
func (s *Scheduler) SetStable(ctx context.Context, key JobKey, version uint64, stable bool) (index uint64, err error) {
	return s.update(ctx, func(c *change) error {
		if !c.markStable(key, version, stable) {
			return refuse(NotFound, "job %q in namespace %q at version %d not found", key.ID, key.Namespace, version)
		}
		return nil
	})
}

// TagVersion gives a version of a job a name, which keeps it from being forgotten.
// A nil version is the current one.
func (s *Scheduler) TagVersion(ctx context.Context, key JobKey, version *uint64, tag api.JobVersionTag) (api.JobVersionTag, uint64, error) {
	if len(tag.Description) > maxTagDescription {
		return tag, 0, refuse(Invalid, "version tag description must be under %d characters, currently %d", maxTagDescription, len(tag.Description))
	}
	index, err := s.update(ctx, func(c *change) error {
		job := c.Job(key)
		if job == nil {
			return refuse(NotFound, "job %q not found", key.ID)
		}
		if version != nil {
			if job = c.version(key, *version); job == nil {
				return refuse(NotFound, "job %q version %d not found", key.ID, *version)
			}
		}
		if other := c.tagged(key, tag.Name); other != nil && *other.Version != *job.Version {
			return refuse(Refused, "tag %q already exists on a different version of job %q", tag.Name, key.ID)
		}
		tag.TaggedTime = c.now.UnixNano()
		c.putTag(job, &tag)
		return nil
	})
	return tag, index, err
}

// maxTagDescription is the longest description of a version tag.
const maxTagDescription = 1000

// UntagVersion takes a name away from a version of a job.
func (s *Scheduler) UntagVersion(ctx context.Context, key JobKey, name string) (uint64, error) {
	return s.update(ctx, func(c *change) error {
		job := c.tagged(key, name)
		if job == nil {
			return refuse(NotFound, "tag %q not found on job %q", name, key.ID)
		}
		c.putTag(job, nil)
		c.trimVersions(key)
		return nil
	})
}

// tagged returns the version of a job that has the tag.
func (c *change) tagged(key JobKey, name string) *api.Job {
	for _, v := range c.JobVersions(key) {
		if v.VersionTag != nil && v.VersionTag.Name == name {
			return v
		}
	}
	return nil
}

func (c *change) putTag(version *api.Job, tag *api.JobVersionTag) {
	copied := *version
	copied.VersionTag = tag
	c.PutJobVersion(&copied)
}

// Evaluate looks at a job again. With force, allocations that failed are replaced
// whatever their policy says.
func (s *Scheduler) Evaluate(ctx context.Context, key JobKey, force bool) (out Outcome, err error) {
	out.Index, err = s.update(ctx, func(c *change) error {
		job := c.Job(key)
		switch {
		case job == nil:
			return refuse(NotFound, "job not found")
		case job.Periodic != nil:
			return refuse(Refused, "can't evaluate periodic job")
		case job.IsParameterized():
			return refuse(Refused, "can't evaluate parameterized job")
		}
		if force {
			c.forceReschedule(key)
		}
		c.outcome(&out, job, triggerRegister, 0)
		return nil
	})
	return out, err
}

func (c *change) forceReschedule(key JobKey) {
	for _, a := range c.AllocsOfJob(key) {
		if a.ClientStatus == api.AllocClientStatusFailed && a.DesiredStatus == api.AllocDesiredStatusRun && a.NextAllocation == "" {
			copied := *a
			copied.DesiredTransition.ForceReschedule = new(true)
			c.putAlloc(&copied)
		}
	}
}

// ScaleRequest asks for another count of a group, or only notes an event.
type ScaleRequest struct {
	Group   string
	Count   *int64 // nil: note the event only
	Message string
	Error   bool
	Meta    map[string]any
	// JobModifyIndex must be that of the job, unless it is zero.
	JobModifyIndex uint64
}

// Scale changes the count of a group.
func (s *Scheduler) Scale(ctx context.Context, key JobKey, r ScaleRequest) (out Outcome, err error) {
	out.Index, err = s.update(ctx, func(c *change) error {
		job := c.Job(key)
		if job == nil {
			return refuse(NotFound, "job %q not found", key.ID)
		}
		g := model.Group(job, r.Group)
		if err := c.checkScale(job, g, r); err != nil {
			return err
		}
		event := api.ScalingEvent{
			Count: r.Count, PreviousCount: int64(*g.Count), Error: r.Error, Message: r.Message, Meta: r.Meta,
			Time: uint64(c.now.UnixNano()), CreateIndex: c.Index(),
		}
		out.JobModifyIndex = *job.ModifyIndex
		if r.Count != nil {
			scaled := withCount(job, r.Group, int(*r.Count))
			if err := prepare(scaled, c); err != nil {
				return err
			}
			c.outcome(&out, c.putVersion(scaled, job, c.Submission(key, *job.Version)), triggerScaling, 0)
			if out.EvalID != "" {
				event.EvalID = &out.EvalID
			}
		}
		c.PutScalingEvent(key, r.Group, event)
		return nil
	})
	return out, err
}

func (c *change) checkScale(job *api.Job, g *api.TaskGroup, r ScaleRequest) error {
	switch {
	case g == nil:
		return refuse(Invalid, "task group %q specified for scaling does not exist in job", r.Group)
	case r.JobModifyIndex != 0 && r.JobModifyIndex != *job.JobModifyIndex:
		return refuse(Refused, "job exists with conflicting job modify index: %d", *job.JobModifyIndex)
	case r.Error && r.Count != nil:
		return refuse(Invalid, "scaling action should not contain count if error is true")
	case r.Count == nil:
		return nil
	case *r.Count < 0:
		return refuse(Invalid, "scaling action count can't be negative")
	case *job.Type == api.JobTypeSystem && *r.Count > 1:
		return refuse(Invalid, `jobs of type "system" can only be scaled between 0 and 1`)
	}
	if d := LatestDeployment(c, KeyOf(job)); d != nil && model.DeploymentActive(d) && d.JobCreateIndex == *job.CreateIndex {
		return refuse(Invalid, "job scaling blocked due to active deployment")
	}
	if p := g.Scaling; p != nil {
		if p.Min != nil && *r.Count < *p.Min {
			return refuse(Invalid, "group count was less than scaling policy minimum: %d < %d", *r.Count, *p.Min)
		}
		if p.Max != nil && *r.Count > *p.Max {
			return refuse(Invalid, "group count was greater than scaling policy maximum: %d > %d", *r.Count, *p.Max)
		}
	}
	return nil
}

func withCount(job *api.Job, group string, count int) *api.Job {
	c := *job
	c.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range c.TaskGroups {
		if *g.Name == group {
			scaled := *g
			scaled.Count = &count
			c.TaskGroups[i] = &scaled
		}
	}
	return &c
}

// DryRun says what the registration of a job would lead to, and which job is
// stored now, if any. Nothing is changed.
func (s *Scheduler) DryRun(job *api.Job) (changes Changes, stored *api.Job, err error) {
	state := s.store.View()
	if err := prepare(job, state); err != nil {
		return Changes{}, nil, err
	}
	key := KeyOf(job)
	node := NodeOf(state.Node())
	version, created, index := uint64(0), state.AllocsIndex()+1, state.AllocsIndex()+1
	next, old := *job, state.Job(key)
	if old != nil {
		version, created = *old.Version, *old.CreateIndex
		if !model.SameSpec(old, job) {
			version++
		}
	}
	next.Version, next.CreateIndex, next.ModifyIndex, next.JobModifyIndex = &version, &created, &index, &index
	return Plan(Input{
		Eval: &api.Evaluation{
			ID: s.host.NewID(), Namespace: key.Namespace, JobID: key.ID, Type: *job.Type, Priority: *job.Priority,
			TriggeredBy: triggerRegister, Status: api.EvalStatusPending,
		},
		Job:        &next,
		Allocs:     state.AllocsOfJob(key),
		Evals:      state.EvalsOfJob(key),
		Deployment: LatestDeployment(state, key),
		Node:       node,
		Room:       RoomOf(state, node),
		Host:       s.host,
		Now:        s.host.Now(),
	}), old, nil
}

// child returns a job made from a parent, which nobody else has.
func child(parent *api.Job, id string) *api.Job {
	c := *parent
	c.ID, c.Name, c.ParentID = &id, &id, parent.ID
	c.Meta = maps.Clone(parent.Meta)
	c.Stop, c.VersionTag = new(false), nil
	c.TaskGroups = slices.Clone(parent.TaskGroups)
	for i, g := range c.TaskGroups {
		if g.Scaling == nil {
			continue
		}
		group, scaling := *g, *g.Scaling
		scaling.Target = maps.Clone(scaling.Target)
		scaling.Target["Job"] = id
		scaling.ID = model.PolicyID(*parent.Namespace, id, *g.Name)
		group.Scaling = &scaling
		c.TaskGroups[i] = &group
	}
	return &c
}
