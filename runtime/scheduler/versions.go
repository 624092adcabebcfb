package scheduler

import (
	"cmp"
	"context"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// jobVersions is a schedulerTxn for storing, marking and deleting jobs and their versions.
// It is large because it has the methods of the transaction, too.
type jobVersions struct{ *schedulerTxn }

// registerVersionIfChanged stores the job as the version after old, the stored job or nil, and returns the stored version. If
// old has the same spec, it returns old.
func (j jobVersions) registerVersionIfChanged(job, old *api.Job, submission *api.JobSubmission) *api.Job {
	if old != nil && model.SameSpec(old, job) {
		// A submission with another source text is stored even if the job is the same.
		if key := JobKeyOf(old); submission != nil && !reflect.DeepEqual(submission, j.tx.JobSubmission(nil, key.Namespace, key.ID, *old.Version)) {
			j.tx.PutJobSubmission(key.Namespace, key.ID, *old.Version, submission)
		}
		return old
	}
	return j.putNewVersion(job, old, submission)
}

type authorContextKey struct{}

// WithAuthor returns a context for changes whose new job versions have this author.
func WithAuthor(ctx context.Context, a state.Author) context.Context {
	return context.WithValue(ctx, authorContextKey{}, a)
}

// putNewVersion stores a job copy as the version after old, or as version 0 if old is nil.
func (j jobVersions) putNewVersion(job, old *api.Job, submission *api.JobSubmission) *api.Job {
	next := *job
	version, created := uint64(0), j.tx.Index()
	status := model.JobPending
	if old != nil {
		version, created = *old.Version+1, *old.CreateIndex
		status = pointer.Value(old.Status)
	}
	next.Version, next.CreateIndex = &version, &created
	next.ModifyIndex, next.JobModifyIndex = new(j.tx.Index()), new(j.tx.Index())
	next.SubmitTime = new(j.now.UnixNano())
	next.Stable, next.Status, next.VersionTag = new(false), &status, nil
	j.setScalingPolicyIndexes(&next, old)
	if pointer.Value(next.Stop) {
		j.setEventOperation(opJobDeregistered)
	} else {
		j.setEventOperation(opJobRegistered)
	}
	j.tx.PutJobAndVersion(&next)
	key := JobKeyOf(&next)
	if submission != nil {
		j.tx.PutJobSubmission(key.Namespace, key.ID, version, submission)
	}
	if j.author != (state.Author{}) {
		j.tx.PutJobVersionAuthor(key.Namespace, key.ID, version, j.author)
	}
	if isActivePeriodic(&next) {
		childJobLauncher(j).recordLaunchNow(key)
	}
	childJobLauncher(j).setLaunchTimer(&next)
	j.deleteSurplusVersions(key)
	j.reconcileJobAtTxnEnd(key)
	return &next
}

// putOldVersionAsNewest stores a copy of an older version as the version after current.
func (j jobVersions) putOldVersionAsNewest(version, current *api.Job) *api.Job {
	again := *version
	again.Stop = new(false)
	return j.putNewVersion(&again, current, j.tx.JobSubmission(nil, *version.Namespace, *version.ID, *version.Version))
}

// recoverLostJob recovers a job with an unreadable record from its newest version, or from the newest job in its allocations
// that must run. A job without either was purged.
func (j jobVersions) recoverLostJob(key JobKey) {
	candidates := j.tx.JobVersions(nil, key.Namespace, key.ID)
	if len(candidates) == 0 {
		for _, a := range j.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
			if a.Job != nil && isDesiredRunAndUnreplaced(a) && !a.ClientTerminalStatus() {
				candidates = append(candidates, a.Job)
			}
		}
	}
	if len(candidates) == 0 {
		return
	}
	recovered := *slices.MaxFunc(candidates, compareJobVersions)
	j.scheduler.logger.Warn("lost job recovered from its versions and allocations", "job_id", key.ID, "version", *recovered.Version)
	j.tx.PutJobAndVersion(&recovered)
	childJobLauncher(j).setLaunchTimer(&recovered)
}

func compareJobVersions(a, b *api.Job) int { return cmp.Compare(*a.Version, *b.Version) }

// deleteJob deletes a job with its versions. It sets desiredAllocsChanged to notify the node: if a task of the
// job is being stopped while its driver is unavailable, the node then ends the task without the driver.
func (j jobVersions) deleteJob(key JobKey) {
	j.tx.DeleteJob(key.Namespace, key.ID)
	j.desiredAllocsChanged = true
	j.tx.OnCommit(func() { j.scheduler.periodicLaunchTimers.setOrClearDueTime(key, zeroTime) })
}

// deleteSurplusVersions deletes a job's versions older than its newest [model.JobLimits.TrackedVersions] ones, unless they are tagged or the
// newest stable version.
func (j jobVersions) deleteSurplusVersions(key JobKey) {
	stable := false
	for i, v := range j.tx.JobVersions(nil, key.Namespace, key.ID) {
		newest := pointer.Value(v.Stable) && !stable
		stable = stable || newest
		if i >= j.scheduler.limits.jobs.TrackedVersions && !newest && v.VersionTag == nil {
			j.tx.DeleteJobVersion(key.Namespace, key.ID, *v.Version)
		}
	}
}

// RevertToVersion stores an older job version as the newest one. If enforcePriorVersion is not nil, it must be the current
// version's number.
func (s *Scheduler) RevertToVersion(ctx context.Context, key JobKey, version uint64, enforcePriorVersion *uint64) (out RequestOutcome, err error) {
	out.Index, err = s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		current := c.tx.Job(nil, key.Namespace, key.ID)
		switch {
		case current == nil:
			return requestErrorf(RequestNotFound, "job %q not found", key.ID)
		case enforcePriorVersion != nil && *enforcePriorVersion != *current.Version:
			return requestErrorf(RequestRefused, "Current job has version %d; enforcing version %d", *current.Version, *enforcePriorVersion)
		case *current.Version == version:
			return requestErrorf(RequestRefused, "can't revert to current version")
		}
		old := c.tx.JobVersion(nil, key.Namespace, key.ID, version)
		if old == nil {
			return requestErrorf(RequestNotFound, "job %q in namespace %q at version %d not found", key.ID, key.Namespace, version)
		}
		job, again := current, *old
		again.Stop = new(false)
		if namespace := c.tx.Namespace(nil, key.Namespace); namespace != nil && namespace.Capabilities != nil {
			if err := validateJob(&again, c.scheduler.limits.jobs, c.tx.Reader); err != nil {
				return err
			}
		}
		if !model.SameSpec(&again, current) {
			job = jobVersions{c}.putOldVersionAsNewest(old, current)
		}
		c.evaluateUnlessParentJob(&out, job, triggerRegister, 0)
		return nil
	})
	return out, err
}

// SetVersionStable marks a job version as stable or not.
func (s *Scheduler) SetVersionStable(ctx context.Context, key JobKey, version uint64, stable bool) (index uint64, err error) {
	return s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		if !(jobVersions{c}).setStableIfVersionExists(key, version, stable) {
			return requestErrorf(RequestNotFound, "job %q in namespace %q at version %d not found", key.ID, key.Namespace, version)
		}
		return nil
	})
}

// setStableIfVersionExists sets a job version's stable flag. It reports whether the version exists.
func (j jobVersions) setStableIfVersionExists(key JobKey, version uint64, stable bool) bool {
	job := j.tx.JobVersion(nil, key.Namespace, key.ID, version)
	if job != nil && pointer.Value(job.Stable) != stable {
		copied := *job
		copied.Stable = &stable
		j.tx.PutJobVersion(&copied)
	}
	return job != nil
}

// previousStableVersion returns the latest stable version before the given one, or nil.
func (j jobVersions) previousStableVersion(job *api.Job) *api.Job {
	for _, v := range j.tx.JobVersions(nil, *job.Namespace, *job.ID) {
		if pointer.Value(v.Stable) && *v.Version < *job.Version {
			return v
		}
	}
	return nil
}

// TagVersion sets a job version's tag. Tagged versions are never deleted as surplus. A nil version means the current version.
func (s *Scheduler) TagVersion(ctx context.Context, key JobKey, version *uint64, tag api.JobVersionTag) (stored api.JobVersionTag, index uint64, err error) {
	if len(tag.Description) > maxTagDescription {
		return tag, 0, requestErrorf(RequestInvalid, "version tag description must be under %d characters, currently %d", maxTagDescription, len(tag.Description))
	}
	index, err = s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		job := c.tx.Job(nil, key.Namespace, key.ID)
		if job == nil {
			return requestErrorf(RequestNotFound, "job %q not found", key.ID)
		}
		if version != nil {
			if job = c.tx.JobVersion(nil, key.Namespace, key.ID, *version); job == nil {
				return requestErrorf(RequestNotFound, "job %q version %d not found", key.ID, *version)
			}
		}
		if other := (jobVersions{c}).versionByTag(key, tag.Name); other != nil && *other.Version != *job.Version {
			return requestErrorf(RequestRefused, "tag %q already exists on a different version of job %q", tag.Name, key.ID)
		}
		tag.TaggedTime = c.now.UnixNano()
		jobVersions{c}.putVersionTag(job, &tag)
		return nil
	})
	return tag, index, err
}

// maxTagDescription is a tag description's maximum length in bytes.
const maxTagDescription = 1000

// UntagVersion removes a tag from a job version.
func (s *Scheduler) UntagVersion(ctx context.Context, key JobKey, tagName string) (index uint64, err error) {
	return s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		job := jobVersions{c}.versionByTag(key, tagName)
		if job == nil {
			return requestErrorf(RequestNotFound, "tag %q not found on job %q", tagName, key.ID)
		}
		jobVersions{c}.putVersionTag(job, nil)
		jobVersions{c}.deleteSurplusVersions(key)
		return nil
	})
}

// versionByTag returns the job version with the tag, or nil.
func (j jobVersions) versionByTag(key JobKey, tagName string) *api.Job {
	for _, v := range j.tx.JobVersions(nil, key.Namespace, key.ID) {
		if v.VersionTag != nil && v.VersionTag.Name == tagName {
			return v
		}
	}
	return nil
}

func (j jobVersions) putVersionTag(version *api.Job, tag *api.JobVersionTag) {
	copied := *version
	copied.VersionTag = tag
	j.tx.PutJobVersion(&copied)
}

// setScalingPolicyIndexes sets CreateIndex and ModifyIndex for a new job version's scaling policies. A policy that is the same
// in old keeps its indexes.
func (j jobVersions) setScalingPolicyIndexes(job, old *api.Job) {
	job.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range job.TaskGroups {
		if g.Scaling == nil {
			continue
		}
		group, policy := *g, *g.Scaling
		policy.CreateIndex, policy.ModifyIndex = j.tx.Index(), j.tx.Index()
		if old != nil {
			if before := model.FindGroup(old, *g.Name); before != nil && before.Scaling != nil {
				policy.CreateIndex = before.Scaling.CreateIndex
				if model.SameScalingPolicy(before.Scaling, g.Scaling) {
					policy = *before.Scaling
				}
			}
		}
		group.Scaling = &policy
		job.TaskGroups[i] = &group
	}
}
