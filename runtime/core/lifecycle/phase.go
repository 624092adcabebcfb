package lifecycle

// Phase is the progress of an allocation through its lifecycle.
type Phase uint8

// The phases, in order.
const (
	PhaseInit      Phase = iota // no task may start; a restart of all tasks waits here until the old processes have exited
	PhasePrestart               // prestart tasks run
	PhaseMain                   // main tasks start, beside the prestart sidecars
	PhasePoststart              // poststart tasks start, beside the main tasks
	PhaseWaitAlloc              // all tasks have started; the phase lasts until they end
	PhasePoststop               // all other tasks are dead
)

func (p Phase) String() string {
	return [...]string{"init", "prestart", "main", "poststart", "wait_alloc", "poststop"}[p]
}

// phaseTable maps each phase to the stages that may start in it and the condition that ends it.
var phaseTable = [...]struct {
	open Stage
	done func(StateSetByStage) bool
}{
	PhaseInit:      {0, StateSetByStage.allPending},
	PhasePrestart:  {PrestartEphemeral | PrestartSidecar, StateSetByStage.prestartDone},
	PhaseMain:      {PrestartSidecar | MainTask, StateSetByStage.mainStarted},
	PhasePoststart: {PrestartSidecar | MainTask | PoststartEphemeral | PoststartSidecar, StateSetByStage.poststartDone},
	PhaseWaitAlloc: {PrestartSidecar | MainTask | PoststartSidecar, phaseNeverDone},
	PhasePoststop:  {PoststopTask, phaseNeverDone},
}

// Next returns the phase after p for the given tasks. It may skip phases, and returns p if the
// phase does not change.
func (p Phase) Next(states StateSetByStage) Phase {
	if states.allTasksIn(allStages&^PoststopTask, newStateSet(Succeeded, Failed)) {
		return PhasePoststop // PhasePoststop follows any phase when all tasks but poststop tasks are dead
	}
	for phaseTable[p].done(states) {
		p++
	}
	return p
}

// OpensStage reports whether stage s tasks may start in phase p.
func (p Phase) OpensStage(s Stage) bool { return phaseTable[p].open&s != 0 }

func (st StateSetByStage) allPending() bool { return st.allTasksIn(allStages, newStateSet(Pending)) }

func (st StateSetByStage) prestartDone() bool {
	return st.allTasksIn(PrestartEphemeral, newStateSet(Succeeded)) && st.allTasksIn(PrestartSidecar, newStateSet(Running))
}

func (st StateSetByStage) mainStarted() bool {
	return st.allTasksIn(MainTask, newStateSet(Running, Succeeded, Failed))
}

func (st StateSetByStage) poststartDone() bool {
	return st.allTasksIn(PoststartEphemeral, newStateSet(Succeeded, Failed))
}

func phaseNeverDone(StateSetByStage) bool { return false }
