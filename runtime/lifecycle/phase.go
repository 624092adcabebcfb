package lifecycle

// Phase is the progress of an allocation through its lifecycle.
type Phase uint8

// The phases, in order.
const (
	Init      Phase = iota // no task may start; a restart of all tasks waits here until the old processes have exited
	Prestart               // prestart tasks run
	Main                   // main tasks start, beside the prestart sidecars
	Poststart              // poststart tasks start, beside the main tasks
	WaitAlloc              // all tasks have started; the phase lasts until they end
	Poststop               // all other tasks are dead
)

func (p Phase) String() string {
	return [...]string{"init", "prestart", "main", "poststart", "wait_alloc", "poststop"}[p]
}

// table maps each phase to the stages that may start in it and to the condition that
// ends it.
var table = [...]struct {
	open Stage
	done func(Tasks) bool
}{
	Init:      {0, Tasks.allPending},
	Prestart:  {PrestartEphemeral | PrestartSidecar, Tasks.prestartDone},
	Main:      {PrestartSidecar | MainTask, Tasks.mainStarted},
	Poststart: {PrestartSidecar | MainTask | PoststartEphemeral | PoststartSidecar, Tasks.poststartDone},
	WaitAlloc: {PrestartSidecar | MainTask | PoststartSidecar, never},
	Poststop:  {PoststopTask, never},
}

// Next returns the phase that follows p for the given tasks. It may skip phases, and
// returns p if the phase does not change.
func (p Phase) Next(t Tasks) Phase {
	if t.all(allStages&^PoststopTask, in(Succeeded, Failed)) {
		return Poststop // all tasks but poststop tasks are dead, whatever the phase
	}
	for table[p].done(t) {
		p++
	}
	return p
}

// Open reports whether tasks of stage s may start in phase p.
func (p Phase) Open(s Stage) bool { return table[p].open&s != 0 }

func (t Tasks) allPending() bool { return t.all(allStages, in(Pending)) }

func (t Tasks) prestartDone() bool {
	return t.all(PrestartEphemeral, in(Succeeded)) && t.all(PrestartSidecar, in(Running))
}

func (t Tasks) mainStarted() bool { return t.all(MainTask, in(Running, Succeeded, Failed)) }

func (t Tasks) poststartDone() bool { return t.all(PoststartEphemeral, in(Succeeded, Failed)) }

func never(Tasks) bool { return false }
