package lifecycle

// Phase is how far an allocation has come.
type Phase uint8

// The phases, in order.
const (
	Init      Phase = iota // nothing may start; a restart of all tasks waits here until the old ones are gone
	Prestart               // prestart tasks run
	Main                   // main tasks start, beside the prestart sidecars
	Poststart              // poststart tasks start, beside the main tasks
	WaitAlloc              // everything runs that should; waiting for its end
	Poststop               // everything else is dead
)

func (p Phase) String() string {
	return [...]string{"init", "prestart", "main", "poststart", "wait_alloc", "poststop"}[p]
}

// table says which stages may start in each phase, and what ends the phase.
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

// Next returns the phase that follows p when the tasks are as given. It may
// skip phases, and returns p when nothing is to change.
func (p Phase) Next(t Tasks) Phase {
	if t.all(allStages&^PoststopTask, in(Succeeded, Failed)) {
		return Poststop // nothing is left to wait for, whatever the phase
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
