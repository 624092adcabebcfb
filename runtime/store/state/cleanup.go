package state

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// PendingCleanup is a failed call to a cleanup hook point. The agent retries it when the plugin runs, as long as the state has
// a record of the allocation, and after that until RetryUntil.
type PendingCleanup struct {
	Hook    string
	AllocID string
	Task    string // "" for the allocation
	Point   hook.Point

	// The hook point's request. Exactly one of the three is set.
	Postrun *hook.AllocPostrunRequest
	Stop    *hook.TaskStopRequest
	Destroy *hook.AllocDestroyRequest

	RetryUntil time.Time // when retries end for a call that outlives the allocation's record; zero until the record is deleted, except for Destroy

	// The hook's attachment.
	JobAttachmentJSON     string
	BuiltinAttachmentJSON json.RawMessage
}

// ID identifies the failed call. A pending cleanup with the same ID replaces this one.
func (p *PendingCleanup) ID() string {
	return p.AllocID + "/" + p.Task + "/" + p.Hook + "/" + p.Point.String()
}

// CleanupRecord is a [PendingCleanup]'s stored form. Its requests lack the token, the attachment and the trace, which the agent
// sets again for each call.
type CleanupRecord struct {
	Hook    string `store:"hook"`
	AllocID string `store:"alloc_id"`
	Task    string `store:"task"`

	Postrun *AllocRequestRecord `store:"postrun"`
	Stop    *StopRequestRecord  `store:"stop"`
	Destroy *AllocRequestRecord `store:"destroy"`

	RetryUntil time.Time `store:"until"`

	JobAttachmentJSON     string `store:"job"`
	BuiltinAttachmentJSON []byte `store:"raw"`
}

// AllocRequestRecord is the stored form of a [hook.AllocPostrunRequest] and a [hook.AllocDestroyRequest].
type AllocRequestRecord struct {
	Alloc HookAllocRecord `store:"alloc"`
}

// StopRequestRecord is a [hook.TaskStopRequest]'s stored form.
type StopRequestRecord struct {
	Alloc         HookAllocRecord   `store:"alloc"`
	Task          HookTaskRecord    `store:"task"`
	Dir           TaskDirRecord     `store:"dir"`
	PreviousState map[string]string `store:"previous_state,secret"`
}

// HookAllocRecord is a [hook.Alloc]'s stored form.
type HookAllocRecord struct {
	ID        string            `store:"id"`
	Name      string            `store:"name"`
	Namespace string            `store:"namespace"`
	JobID     string            `store:"job_id"`
	JobName   string            `store:"job_name"`
	JobType   string            `store:"job_type"`
	TaskGroup string            `store:"task_group"`
	NodeID    string            `store:"node_id"`
	NodeName  string            `store:"node_name"`
	Meta      map[string]string `store:"meta"`
	JSON      []byte            `store:"json,secret"`
}

// HookTaskRecord is a [hook.Task]'s stored form.
type HookTaskRecord struct {
	Name      string            `store:"name"`
	Driver    string            `store:"driver"`
	User      string            `store:"user"`
	Lifecycle string            `store:"lifecycle"`
	Sidecar   bool              `store:"sidecar"`
	Leader    bool              `store:"leader"`
	Meta      map[string]string `store:"meta"`
}

// TaskDirRecord is a [hook.TaskDir]'s stored form.
type TaskDirRecord struct {
	AllocDir           string `store:"alloc_dir"`
	Dir                string `store:"dir"`
	SharedAllocDir     string `store:"shared_alloc_dir"`
	SharedTaskDir      string `store:"shared_task_dir"`
	LocalDir           string `store:"local_dir"`
	LogDir             string `store:"log_dir"`
	SecretsDir         string `store:"secrets_dir"`
	PrivateDir         string `store:"private_dir"`
	UnveiledAllocDir   string `store:"mounts_alloc_dir"`
	UnveiledTaskDir    string `store:"mounts_task_dir"`
	UnveiledSecretsDir string `store:"mounts_secrets_dir"`
}

// NewCleanupRecord returns a pending cleanup's record.
func NewCleanupRecord(d PendingCleanup) *CleanupRecord {
	r := &CleanupRecord{Hook: d.Hook, AllocID: d.AllocID, Task: d.Task, RetryUntil: d.RetryUntil, JobAttachmentJSON: d.JobAttachmentJSON, BuiltinAttachmentJSON: d.BuiltinAttachmentJSON}
	switch {
	case d.Postrun != nil:
		r.Postrun = &AllocRequestRecord{HookAllocRecord(d.Postrun.Alloc)}
	case d.Stop != nil:
		r.Stop = &StopRequestRecord{
			Alloc: HookAllocRecord(d.Stop.Alloc), Task: HookTaskRecord(d.Stop.Task), Dir: TaskDirRecord(d.Stop.Dir),
			PreviousState: d.Stop.PreviousState,
		}
	case d.Destroy != nil:
		r.Destroy = &AllocRequestRecord{HookAllocRecord(d.Destroy.Alloc)}
	}
	return r
}

// PendingCleanup returns the pending cleanup from a record that CheckRecord accepts.
func (r *CleanupRecord) PendingCleanup() PendingCleanup {
	d := PendingCleanup{Hook: r.Hook, AllocID: r.AllocID, Task: r.Task, RetryUntil: r.RetryUntil, JobAttachmentJSON: r.JobAttachmentJSON, BuiltinAttachmentJSON: r.BuiltinAttachmentJSON}
	switch {
	case r.Postrun != nil:
		d.Point, d.Postrun = hook.Postrun, &hook.AllocPostrunRequest{Alloc: hook.Alloc(r.Postrun.Alloc)}
	case r.Stop != nil:
		d.Point, d.Stop = hook.Stop, &hook.TaskStopRequest{
			Alloc: hook.Alloc(r.Stop.Alloc), Task: hook.Task(r.Stop.Task), Dir: hook.TaskDir(r.Stop.Dir),
			PreviousState: r.Stop.PreviousState,
		}
	case r.Destroy != nil:
		d.Point, d.Destroy = hook.Destroy, &hook.AllocDestroyRequest{Alloc: hook.Alloc(r.Destroy.Alloc)}
	}
	return d
}

// CheckRecord returns an error if the record lacks its hook, its allocation or a request supported by this build.
func (r *CleanupRecord) CheckRecord() error {
	switch {
	case r.Hook == "" || r.AllocID == "":
		return errors.New("the record of a pending cleanup lacks its hook or its allocation")
	case r.Postrun == nil && r.Stop == nil && r.Destroy == nil:
		return errors.New("the record of a pending cleanup has no request that this build knows")
	}
	return nil
}
