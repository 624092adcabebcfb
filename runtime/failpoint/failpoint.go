package failpoint

// Step is a piece of work that must not be done twice, nor be left half done.
type Step int

// The steps, in the order in which an allocation comes to them. Each of them has
// a row in the matrix of faults for each phase and each process.
const (
	JobAccepted   Step = iota // a job is registered
	AllocDir                  // the directory of the allocation is made
	Prerun                    // a hook of the allocation is called
	TaskDir                   // the directory of the task and its FIFOs are made
	Prestart                  // a hook of the task is called
	StartTask                 // the driver starts the task
	HandleStored              // the handle of the task is stored
	Poststart                 // a hook is told that the task runs
	Running                   // the task runs, and somebody has a session in it
	ExitObserved              // the end of the process is stored
	RestartDelay              // the decision to start it again is stored
	PreKill                   // hooks and the delay before a stop
	StopTask                  // the driver stops the task
	DestroyTask               // the driver forgets the task
	StopHooks                 // hooks clean up after the task
	Postrun                   // hooks clean up after the allocation
	Collection                // the directory of the allocation is removed
	UpdateInPlace             // a running allocation gets another version of its job
	UpdateStop                // a running allocation has to make way for another

	steps
)

var names = [steps]string{
	"S0 job accepted", "S1 alloc directory", "S2 prerun hook", "S4 task directory and FIFOs",
	"S5 prestart hook", "S6 StartTask", "S7 handle stored", "S8 poststart hook", "S9 running", "S10 exit observed",
	"S11 restart delay", "S12 prekill", "S13 StopTask", "S14 DestroyTask", "S14 stop hooks", "S14 postrun",
	"S15 collection", "S16 update in place", "S16 destructive update",
}

// String returns the name of the step, as the catalogue of faults has it. Its S3,
// the network of an allocation, is missing: tasks are on the network of the host.
func (s Step) String() string { return names[s] }

// Steps returns all steps.
func Steps() []Step {
	all := make([]Step, steps)
	for i := range all {
		all[i] = Step(i)
	}
	return all
}

// Phase is a part of a step.
type Phase int

// The phases of a step.
const (
	Before Phase = iota // nothing of it has happened
	During              // it is under way
	After               // it is done, and nobody knows: the next record is not written
)

// String returns the name of the phase.
func (p Phase) String() string { return [...]string{"before", "during", "after"}[p] }

// Phases are all phases.
var Phases = []Phase{Before, During, After}

// Reached is called at each moment, by whoever has come there, who goes on when
// it returns. Only tests set it, before anything else happens.
var Reached func(Step, Phase)

// Hit says that the caller has come to a moment.
func Hit(s Step, p Phase) {
	if Reached != nil {
		Reached(s, p)
	}
}

// Wrap calls f, which is the step. During is reached beside f: what f waits for
// happens in another process, or on the disk.
func Wrap(s Step, f func()) {
	if Reached == nil {
		f()
		return
	}
	Reached(s, Before)
	during := make(chan struct{})
	go func() {
		Reached(s, During)
		close(during)
	}()
	f()
	<-during
	Reached(s, After)
}
