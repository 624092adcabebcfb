package httpapi

import (
	"cmp"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// jobIDBody is the part that the bodies of all requests for a job have.
type jobIDBody struct{ JobID string }

// checkIDMatchesPath checks that the job ID in the body, if there is one, is the job ID in the path.
func (b jobIDBody) checkIDMatchesPath(r *request) error {
	if b.JobID != "" && b.JobID != r.pathID {
		return badRequestError("Job ID does not match")
	}
	return nil
}

func (j *jobWriteHandler) dispatch(r *request) (any, error) {
	var body struct {
		jobIDBody
		Payload          []byte
		Meta             map[string]string
		IdPrefixTemplate string
		Priority         int
		IdempotencyToken string
	}
	if err := r.decodeBodyAndCheckID(&body, true); err != nil {
		return nil, err
	}
	return j.dispatchChild(r, scheduler.DispatchRequest{
		Payload: body.Payload, Meta: body.Meta, IDPrefix: body.IdPrefixTemplate, Priority: body.Priority, IdempotencyToken: body.IdempotencyToken,
	})
}

// dispatchBodyAsPayload dispatches a job. Its payload is the complete body of the request, not a field of JSON.
func (j *jobWriteHandler) dispatchBodyAsPayload(r *request) (any, error) {
	payload, err := r.readBodyBytes(maxBodyBytes)
	if err != nil {
		return nil, err
	}
	return j.dispatchChild(r, scheduler.DispatchRequest{Payload: payload})
}

func (j *jobWriteHandler) dispatchChild(r *request, d scheduler.DispatchRequest) (any, error) {
	if err := checkRegistrationAccepted(j.store); err != nil {
		return nil, err
	}
	d.IdempotencyToken = cmp.Or(r.query.Get("idempotency_token"), d.IdempotencyToken)
	out, err := j.scheduler.DispatchJob(r.Context(), r.jobKey(), d)
	if err != nil {
		return nil, err
	}
	return struct {
		DispatchedJobID string
		EvalID          string
		EvalCreateIndex uint64
		JobCreateIndex  uint64
		replyMeta
	}{out.ChildJobID, out.EvalID, out.EvalCreateIndex, out.ChildJobCreateIndex, r.replyMetaOfWrite(out.Index)}, nil
}

func (j *jobWriteHandler) evaluate(r *request) (any, error) {
	var body struct {
		jobIDBody
		EvalOptions api.EvalOptions
	}
	if err := r.decodeBodyAndCheckID(&body, true); err != nil {
		return nil, err
	}
	out, err := j.scheduler.EvaluateJob(r.Context(), r.jobKey(), body.EvalOptions.ForceReschedule)
	if err != nil {
		return nil, err
	}
	return r.newJobWriteReply(out), nil
}

func (j *jobWriteHandler) forcePeriodicLaunch(r *request) (any, error) {
	if _, err := r.readBodyBytes(maxBodyBytes); err != nil { // the content of the body is not used
		return nil, err
	}
	out, err := j.scheduler.ForceLaunchPeriodicJob(r.Context(), r.jobKey())
	if err != nil {
		return nil, err
	}
	return struct {
		EvalID          string
		EvalCreateIndex uint64
		replyMeta
	}{out.EvalID, out.EvalCreateIndex, r.replyMetaOfWrite(out.Index)}, nil
}

func (j *jobWriteHandler) revert(r *request) (any, error) {
	var body struct {
		jobIDBody
		JobVersion          uint64
		EnforcePriorVersion *uint64
	}
	if err := r.decodeBodyAndCheckID(&body, false); err != nil {
		return nil, err
	}
	if err := checkRegistrationAccepted(j.store); err != nil {
		return nil, err
	}
	out, err := j.scheduler.RevertToVersion(r.Context(), r.jobKey(), body.JobVersion, body.EnforcePriorVersion)
	if err != nil {
		return nil, err
	}
	return r.newJobWriteReply(out), nil
}

func (j *jobWriteHandler) setStable(r *request) (any, error) {
	var body struct {
		jobIDBody
		JobVersion uint64
		Stable     bool
	}
	if err := r.decodeBodyAndCheckID(&body, false); err != nil {
		return nil, err
	}
	index, err := j.scheduler.SetVersionStable(r.Context(), r.jobKey(), body.JobVersion, body.Stable)
	if err != nil {
		return nil, err
	}
	return struct {
		JobModifyIndex uint64
		replyMeta
	}{index, r.replyMetaOfWrite(index)}, nil
}
