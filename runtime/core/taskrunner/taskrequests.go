package taskrunner

import (
	"context"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// taskRequests contains requests from other goroutines, and the process to which a request applies. The requests are a kill, a
// process restart, a rerun after the end, a new task version, and the next start's output, cgroup and network. Its methods may be
// called concurrently, before, during and after Run, unless their comment says otherwise. The records' mutex mu guards the fields
// and channel closing, because a request is stored together with the task's state.
type taskRequests struct {
	records *taskRecords

	killed               chan struct{} // closed by the first Kill
	forceKilled          chan struct{} // closed by the first ForceKill
	jobPurged            chan struct{} // closed by the first SetJobPurged
	shutdownDelaySkipped chan struct{} // closed by the first SkipShutdownDelay
	rerunRequested       chan struct{} // contains a value while another run of the dead task is requested; capacity 1

	omitKillEvents bool  // the task gets no event when the kill starts or ends
	leakErr        error // error from the kill, which may have leaked resources; nil if the kill succeeded

	// These fields are nil outside Run. The context is a field because it belongs to Run and not to the callers with the requests
	// that it cancels. cancelKilled cancels the contexts from newKillContexts according to killed and forceKilled; the caller
	// must hold mu.
	killCtx      context.Context
	cancelKilled func()

	task               Task // current version
	updateHooksPending bool // the Update hooks must still be called for the current version
	updateHooksRunning bool // a goroutine is calling the Update hooks

	config driver.TaskConfig // the next start's config before newTaskConfig and buildTaskConfig; User is the task's user if its job names none
	cgroup cgroup.Group      // cgroup created by the host for the driver, for the next start

	process        *taskdriver.Process // the task's running process; nil if none runs
	restartAttempt *restartAttempt     // next or current process restart; nil without a process

	lastProcessEnded     bool // the last process's exit was observed, or it was destroyed
	lastExitUnobserved   bool // the last process has ended with an unknown exit status
	earlierProcessMayRun bool // a process before the last one ended with an unknown exit status, and was not destroyed
}

func newTaskRequests(records *taskRecords, task Task, dir hook.TaskDir) *taskRequests {
	alloc := records.alloc
	return &taskRequests{
		records: records, task: task,
		config: driver.TaskConfig{
			Name: task.Name, JobName: alloc.JobName, JobID: alloc.JobID, ParentJobID: alloc.ParentJobID,
			TaskGroupName: alloc.TaskGroup, Namespace: alloc.Namespace, NodeName: alloc.NodeName, NodeID: alloc.NodeID,
			AllocID: alloc.ID, AllocDir: dir.AllocDir, StdoutPath: nullDevice, StderrPath: nullDevice, DNS: alloc.DNS,
		},
		killed: make(chan struct{}), forceKilled: make(chan struct{}), jobPurged: make(chan struct{}),
		shutdownDelaySkipped: make(chan struct{}), rerunRequested: make(chan struct{}, 1),
	}
}
