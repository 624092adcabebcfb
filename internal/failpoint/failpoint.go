package failpoint

// Step is an operation in the life of an allocation or volume that must not be executed twice, and must not stay
// incomplete after a crash.
type Step int

// The steps in the order in which an allocation reaches them. The tests have a row for
// each step, with each phase and each process that can be killed.
const (
	StepVolumeRecord       Step = iota // the record of a new host volume is stored
	StepVolumeCreate                   // a plugin creates the volume
	StepVolumeReady                    // the result of the plugin that has created the volume is stored
	StepJobAccepted                    // a job is registered
	StepAllocsPulled                   // allocations that servers of a cluster have assigned are stored
	StepStatesSent                     // states of allocations are sent to servers of a cluster
	StepAllocDir                       // the directory of the allocation is made
	StepPrerun                         // a hook of the allocation is called
	StepNetwork                        // the network of the allocation is created
	StepNamespace                      // the agent creates the network namespace of the allocation
	StepConnectNetwork                 // the agent connects the namespace to the bridge
	StepForwardPorts                   // the agent forwards the ports of the allocation
	StepTaskDir                        // the directory of the task and its FIFOs are made
	StepVolumeMounts                   // the mounts of the task are made from its volumes
	StepPrestart                       // a hook of the task is called
	StepStartTask                      // the driver starts the task
	StepHandleStored                   // the handle of the task is stored
	StepPoststart                      // a hook is called after the start of the task
	StepRunning                        // the task runs, with an open exec session
	StepExitObserved                   // the exit of the process is stored
	StepRestartDelay                   // the decision to restart the task is stored
	StepPreKill                        // before a stop, hooks are called and the shutdown delay passes
	StepStopTask                       // the driver stops the task
	StepDestroyTask                    // the driver removes the task
	StepStopHooks                      // hooks clean up after the task
	StepPostrun                        // hooks clean up after the allocation
	StepDisconnectNetwork              // the agent disconnects the namespace from the bridge
	StepGarbageCollection              // the directory of the allocation is removed
	StepUpdateInPlace                  // a running allocation gets another version of its job
	StepUpdateStop                     // another allocation replaces a running one
	StepVolumeDeleteRecord             // the record of a host volume is marked as being deleted
	StepVolumeDelete                   // a plugin deletes the volume
	StepVolumeForget                   // the record of the volume is removed

	stepCount
)

var stepNames = [stepCount]string{
	"S0 volume record", "S0 volume create", "S0 volume ready", "S0 job accepted", "S0 allocations pulled", "S0 states sent", "S1 alloc directory", "S2 prerun hook", "S3 network", "S3 namespace", "S3 connect network", "S3 forward ports", "S4 task directory and FIFOs",
	"S5 volume mounts", "S5 prestart hook", "S6 StartTask", "S7 handle stored", "S8 poststart hook", "S9 running", "S10 exit observed",
	"S11 restart delay", "S12 prekill", "S13 StopTask", "S14 DestroyTask", "S14 stop hooks", "S14 postrun", "S14 disconnect network",
	"S15 collection", "S16 update in place", "S16 destructive update",
	"S17 volume delete record", "S17 volume delete", "S17 volume forget",
}

// String returns the name of the step in the fault catalogue.
func (s Step) String() string { return stepNames[s] }

// Steps returns all steps.
func Steps() []Step {
	all := make([]Step, stepCount)
	for i := range all {
		all[i] = Step(i)
	}
	return all
}

// Phase is a point before, during or after a step.
type Phase int

// Phases of a step.
const (
	PhaseBefore Phase = iota // the step has not started
	PhaseDuring              // the step is in progress
	PhaseAfter               // the step is complete, and its result is not stored yet
)

// String returns the name of the phase.
func (p Phase) String() string { return [...]string{"before", "during", "after"}[p] }

// Phases lists all phases.
var Phases = []Phase{PhaseBefore, PhaseDuring, PhaseAfter}

// OnHit is called at each point, in the goroutine of the step, which continues when OnHit
// returns. Only tests set it, before any other code runs.
var OnHit func(Step, Phase)

// RepeatStarts makes the agent destroy and repeat a start that a crash has interrupted, in place of adopting the task.
// It is a deliberate defect, which the tests of interrupted starts must find. Only tests set it, before any other code
// runs.
var RepeatStarts bool

// Hit calls OnHit, if a test has set it, with the point in a step that the caller has reached.
func Hit(s Step, p Phase) {
	if OnHit != nil {
		OnHit(s, p)
	}
}

// ActiveStep is a step that is in progress.
type ActiveStep struct {
	step              Step
	duringHitReturned chan struct{} // closed when OnHit(PhaseDuring) has returned; nil if OnHit is not set
}

// EnterStep reports PhaseBefore. It reports PhaseDuring concurrently with the work of the caller, because
// the caller waits meanwhile for another process or for the disk. The caller must call Leave after the work.
func EnterStep(s Step) ActiveStep {
	if OnHit == nil {
		return ActiveStep{}
	}
	OnHit(s, PhaseBefore)
	e := ActiveStep{step: s, duringHitReturned: make(chan struct{})}
	go func() {
		defer close(e.duringHitReturned)
		OnHit(s, PhaseDuring)
	}()
	return e
}

// Leave waits until PhaseDuring has been reported, and reports PhaseAfter.
func (a ActiveStep) Leave() {
	if a.duringHitReturned == nil {
		return
	}
	<-a.duringHitReturned
	OnHit(a.step, PhaseAfter)
}
