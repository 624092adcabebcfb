package hooks

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/redact"
)

// AttachTarget is the allocation, or the task of an allocation, to which plugin hooks are attached.
type AttachTarget struct {
	AllocID   string
	TaskName  string // "" for the allocation
	AllocJSON func() ([]byte, error)
	EmitEvent func(*api.TaskEvent) // emits an event on the task, or on all tasks of the allocation
	Secrets   *redact.Values       // removed from the errors of the hook; nil for none
	// TasksRun reports whether the task, or a task of the allocation, runs. Nil means that none does.
	TasksRun func() bool
	// PreviousAttachmentJSONByHook holds the hooks that an earlier agent had attached, with their
	// attachments as JSON.
	PreviousAttachmentJSONByHook map[string]string
}
