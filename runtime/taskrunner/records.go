package taskrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// Store stores the records of one task. The calls do not block; the returned WaitFunc
// does. Records reach the disk in the order of the puts of all tasks. Neither the
// runner nor the store changes a record after the call. The calls for one task do not
// overlap. Put stores both records or neither: the exit of a process and the state of
// the task must not contradict each other after a crash.
type Store interface {
	PutState(*api.TaskState, state.Durability) state.WaitFunc
	Put(state.LocalState, *api.TaskState, state.Durability) state.WaitFunc
}
