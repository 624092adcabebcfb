package store

import (
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// DeploymentFailure returns why an allocation was unhealthy, for the last deployment in which it was; nil if it never was, or
// if unknown. Until the allocation has ended, it reads the task records.
func (r Reader) DeploymentFailure(a *api.Allocation) *restart.DeploymentFailure {
	var stored state.DeploymentFailureRecord
	if known, err := r.ReadAgentRecord(state.DeploymentFailurePrefix+a.ID, &stored); err == nil && known {
		return stored.Failure()
	}
	for _, task := range slices.Sorted(maps.Keys(a.TaskStates)) {
		record := rowByKey[localRecord](r, nil, taskLocalsTable, a.ID+"\x00"+task)
		if record == nil {
			continue
		}
		var fields struct {
			DeploymentFailure *state.DeploymentFailureRecord `store:"deployment_failure"`
			LastEnd           *state.ProcessExit             `store:"last_end"`
		}
		if decodeMsgpackWith(&decoders, record.unencryptedPart, &fields) != nil { // TaskFields reports an unreadable record
			continue
		}
		if f := fields.DeploymentFailure.Failure(); f != nil {
			return f
		}
		// An allocation can fail before its health is decided.
		if end := (*restart.RunEnd)(fields.LastEnd); a.DeploymentID != "" && a.TaskStates[task].Failed && end.IsFailure() {
			return &restart.DeploymentFailure{Time: end.Time, DeploymentID: a.DeploymentID, Task: task, End: end}
		}
	}
	return nil
}
