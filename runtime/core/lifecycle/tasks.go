package lifecycle

import "math/bits"

// Stage says when in its allocation's lifecycle a task runs, such as prestart or main. Stages are bits, so a
// Stage can also be a set of stages.
type Stage uint8

// The task stages, in the order in which their gates open.
const (
	PrestartEphemeral Stage = 1 << iota
	PrestartSidecar
	MainTask
	PoststartEphemeral
	PoststartSidecar
	PoststopTask

	allStages Stage = 1<<iota - 1
)

func (s Stage) String() string {
	switch s {
	case PrestartEphemeral:
		return "prestart"
	case PrestartSidecar:
		return "prestart sidecar"
	case MainTask:
		return "main"
	case PoststartEphemeral:
		return "poststart"
	case PoststartSidecar:
		return "poststart sidecar"
	case PoststopTask:
		return "poststop"
	}
	return "several stages"
}

// Ephemeral reports whether the stage's tasks run beside the main tasks and are expected to end.
func (s Stage) Ephemeral() bool { return s&(PrestartEphemeral|PoststartEphemeral) != 0 }

// StageOf returns the stage for a task's lifecycle block. An empty hook means a main task, and
// sidecar is ignored for main and poststop tasks. Validation rejects an unknown hook; StageOf
// treats it as main.
func StageOf(hook string, sidecar bool) Stage {
	switch {
	case hook == "prestart" && sidecar:
		return PrestartSidecar
	case hook == "prestart":
		return PrestartEphemeral
	case hook == "poststart" && sidecar:
		return PoststartSidecar
	case hook == "poststart":
		return PoststartEphemeral
	case hook == "poststop":
		return PoststopTask
	}
	return MainTask
}

// Sidecar reports whether the stage's tasks run beside the main tasks until the main tasks have
// ended.
func (s Stage) Sidecar() bool { return s&(PrestartSidecar|PoststartSidecar) != 0 }

// State is one task's state: pending, running, succeeded or failed.
type State uint8

// The states. A task waiting for its restart is Pending; a dead task is Succeeded or Failed.
const (
	Pending State = iota
	Running
	Succeeded
	Failed
)

// StateOf converts an API task state. An unknown state counts as pending.
func StateOf(state string, failed bool) State {
	switch {
	case state == "running":
		return Running
	case state == "dead" && failed:
		return Failed
	case state == "dead":
		return Succeeded
	}
	return Pending
}

// Dead reports whether the task has ended.
func (s State) Dead() bool { return s == Succeeded || s == Failed }

// stateSet is a set of State.
type stateSet uint8

func newStateSet(of ...State) stateSet {
	var set stateSet
	for _, s := range of {
		set |= 1 << s
	}
	return set
}

// StateSetByStage has, for each stage, the set of its tasks' states. An allocation's phase depends on nothing else.
// The zero value has no tasks.
type StateSetByStage [6]stateSet

// AddTask adds one task.
func (st *StateSetByStage) AddTask(stage Stage, s State) {
	st[bits.TrailingZeros8(uint8(stage))] |= newStateSet(s)
}

// allTasksIn reports whether every task in the stages is in one of the allowed states. It returns true
// for a stage without tasks.
func (st StateSetByStage) allTasksIn(stages Stage, allowed stateSet) bool {
	for i, have := range st {
		if stages&(1<<i) != 0 && have&^allowed != 0 {
			return false
		}
	}
	return true
}
