package localnode

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// TaskRecordReader reads stored task records. Each call opens a new snapshot, because a kept snapshot would stay in memory as
// long as the agent runs.
type TaskRecordReader struct{ Store *store.Store }

var _ core.RecordReader = TaskRecordReader{}

// TaskFields implements core.RecordReader.
func (r TaskRecordReader) TaskFields(allocID, task string) (record.Fields, bool, error) {
	return r.Store.Snapshot().TaskFields(allocID, task)
}

// TaskState implements core.RecordReader.
func (r TaskRecordReader) TaskState(allocID, task string) (*api.TaskState, error) {
	return r.Store.Snapshot().TaskState(allocID, task)
}

// AttachmentConfigByHook implements core.RecordReader.
func (r TaskRecordReader) AttachmentConfigByHook(allocID string) map[string]string {
	return r.Store.Snapshot().AttachedHookConfigs(allocID)
}
