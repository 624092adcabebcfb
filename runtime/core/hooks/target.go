package hooks

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/redact"
)

// AttachTarget is the allocation or task to which plugin hooks are attached.
type AttachTarget struct {
	AllocID   string
	TaskName  string // "" for the allocation
	AllocJSON func() ([]byte, error)
	EmitEvent func(*api.TaskEvent) // emits an event on the task, or on all the allocation's tasks
	Secrets   *redact.Values       // removed from the hook's errors; nil for none
	// TasksRun reports whether the task runs, or any task for an allocation. Nil means none runs.
	TasksRun func() bool
	// PreviousAttachmentJSONByHook holds the hooks attached by an earlier agent, with their
	// attachments as JSON.
	PreviousAttachmentJSONByHook map[string]string
}
