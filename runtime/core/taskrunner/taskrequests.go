package taskrunner

import (
	"context"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// taskRequests contains the requests of other goroutines, and the process to which a request applies. The requests are a
// kill, a restart of the process, a rerun after the end, a new version of the task, and the output, cgroup and network of
// the next start. Its methods may be called concurrently, before, during and after Run, unless their comment says
// otherwise. The mutex mu of the records guards the fields and the closing of the channels, because a request is stored
// together with the state of the task.
type taskRequests struct {
	records *taskRecords

	killed               chan struct{} // closed by the first Kill
	forceKilled          chan struct{} // closed by the first ForceKill
	jobPurged            chan struct{} // closed by the first SetJobPurged
	shutdownDelaySkipped chan struct{} // closed by the first SkipShutdownDelay
	rerunRequested       chan struct{} // contains a value while a rerun of the dead task is requested; capacity 1

	omitKillEvents bool  // the task gets no event when the kill starts or ends
	leakErr        error // error of the kill, which may have leaked resources; nil if the kill succeeded

	// These fields are nil outside Run. The context is a field because it belongs to Run and not to the callers of the
	// requests that it cancels. cancelKilled cancels the contexts of newKillContexts according to killed and
	// forceKilled; the caller must hold mu.
	killCtx      context.Context
	cancelKilled func()

	task               Task // current version
	updateHooksPending bool // the Update hooks must still be called for the current version
	updateHooksRunning bool // a goroutine is calling the Update hooks

	config driver.TaskConfig // config of the next start before newTaskConfig and buildTaskConfig; User is the user of a task whose job names none
	cgroup cgroup.Group      // cgroup that the host has created for the driver, for the next start

	process        *taskdriver.Process // running process of the task; nil if none runs
	restartAttempt *restartAttempt     // next or current restart of the process; nil without a process

	lastProcessEnded     bool // the exit of the last process was observed, or the process was destroyed
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
