package tasksteps

// Step is what a task runner does at one time.
type Step uint8

// The steps.
const (
	None Step = iota // no step: the task's run has ended

	RecoverTask
	QueryEarlierStart
	TakeOverProcess
	CallExitedHooks
	DecideRestart
	AwaitRestartDelay
	AwaitStartGate
	AwaitDriver
	CallPrestartHooks
	StoreStartID
	AwaitPluginTasks
	StartTask
	QueryStart
	StoreHandle
	CallPoststartHooks
	AwaitExit
	CallPreKillingHooks
	AwaitShutdownDelay
	StopTask
	AwaitStopRetry
	AwaitExitAfterStop
	DestroyWithoutExit
	ForceKill
	RecordExit
	DestroyProcess
	MarkDead
	AwaitRerun
	DecideRerun
	DestroyRemaining
	CallStopHooks
	DropUnusedStartID
	CallShutdownHooks
	AbandonTask

	stepCount
)

// Result is a step's result.
type Result uint8

// The results.
const (
	Done              Result = iota // the step is complete
	Failed                          // the step has failed for a reason other than a kill or a shutdown
	Killed                          // a kill ended the step
	ForceKilled                     // a force kill ended the step
	AgentShutdown                   // the agent shuts down, and the task stays as it is
	RunComplete                     // an earlier agent has stored that the task will never run again
	TaskDead                        // the task has ended under an earlier agent
	StartUndecided                  // the driver has not answered whether the earlier agent's start was executed
	ProcessFound                    // the driver has a process that may run
	ExitFound                       // an earlier agent has stored a process exit, and the restart policy has not decided about it
	ExitUnknown                     // the start was executed, and its exit status is unknown
	NothingExecuted                 // the driver is sure that the start has executed nothing
	NoAnswer                        // the driver is unavailable, or could not answer
	PluginDied                      // the plugin process died during the call, which may have been executed
	DriverUnavailable               // the driver has been unavailable since the last call
	RestartRequested                // the process must stop, and the task starts again
	ExitNotReported                 // the driver has stopped the process, and has not reported the exit in time
	AttemptsUsedUp                  // the driver has refused all attempts to stop a killed process
	RestartFailed                   // the driver has refused all attempts to stop the process for a requested restart
	NoRerun                         // a poststop task has ended, which runs only once
	Restart                         // the restart policy starts the task again
	NoRestart                       // the restart policy, or a kill, ends the task
	RerunRequested                  // a dead task runs again, because another task or a user requests it
	NoResult                        // the task runner has no code for the step; no step has a row for it

	resultCount
)

var resultNames = [resultCount]string{
	Done: "done", Failed: "failed", Killed: "killed", ForceKilled: "force killed", AgentShutdown: "agent shutdown",
	RunComplete: "run complete", TaskDead: "task dead", StartUndecided: "start undecided", ProcessFound: "process found", ExitFound: "exit found",
	ExitUnknown: "exit status unknown", NothingExecuted: "nothing executed", NoAnswer: "no answer", PluginDied: "plugin died", DriverUnavailable: "driver unavailable", RestartRequested: "restart requested",
	ExitNotReported: "exit not reported", AttemptsUsedUp: "attempts of a kill used up", RestartFailed: "attempts of a restart used up", NoRerun: "no rerun", Restart: "restart", NoRestart: "no restart", RerunRequested: "rerun requested", NoResult: "no result",
}

// definition is a table row.
type definition struct {
	name string // step name, for users
	note string // what the name and the results leave out; empty if there is nothing
	next map[Result]Step

	// outlastsKill and outlastsShutdown are the reasons why neither a kill nor an agent shutdown ends the step. They
	// are empty if the step has a row for it.
	outlastsKill, outlastsShutdown string
}

const (
	reasonShort    = "the step does not wait"
	reasonCleanup  = "the step cleans up"
	reasonNextStep = "the next step that waits ends"
	reasonStop     = "a kill makes the stop of a requested restart a kill"
)

// table has the next step for each step result.
var table = [stepCount]definition{
	RecoverTask: {
		name: "recover the task of an earlier agent",
		note: "The step is executed before the run. Done means that there is neither a process nor an exit. If the driver does not answer about a recorded process, the process counts as found.",
		next: map[Result]Step{
			Done: AwaitRestartDelay, RunComplete: DestroyRemaining, TaskDead: MarkDead,
			StartUndecided: QueryEarlierStart, ProcessFound: TakeOverProcess, ExitFound: CallExitedHooks,
			AgentShutdown: CallShutdownHooks,
		},
		outlastsKill: reasonNextStep,
	},
	QueryEarlierStart: {
		name: "ask the driver about a start of an earlier agent",
		note: "The agent died during the start. Each round asks once, and then waits until the driver is available, or up to 30 seconds. The number of rounds has no limit. A start that was executed and whose exit status is unknown is an exit. The task is dead if the start was a restart that the policy no longer permits; the driver destroys it.",
		next: map[Result]Step{
			NothingExecuted: AwaitRestartDelay, NoAnswer: QueryEarlierStart, ProcessFound: TakeOverProcess, ExitFound: CallExitedHooks,
			TaskDead:      MarkDead,          // the start was a restart, which a kill or an updated restart policy forbids
			AgentShutdown: CallShutdownHooks, // with the start's id, which the next agent needs
		},
		outlastsKill: "the result is nothing executed, the driver must destroy the start, and the next step that waits ends",
	},
	TakeOverProcess: {
		name:         "take over the process",
		note:         "The Prestart hooks are called for the running process; their errors are events.",
		next:         map[Result]Step{Done: CallPoststartHooks},
		outlastsKill: reasonNextStep, outlastsShutdown: reasonNextStep,
	},
	CallExitedHooks: {
		name:         "call the Exited hooks",
		note:         "The next agent calls hooks again that a shutdown has interrupted.",
		next:         map[Result]Step{Done: DecideRestart, AgentShutdown: DropUnusedStartID},
		outlastsKill: reasonCleanup,
	},
	DecideRestart: {
		name:         "apply the restart policy",
		note:         "A requested restart has no delay and is no attempt. A restart that a failed check requests is an attempt.",
		next:         map[Result]Step{Restart: AwaitRestartDelay, NoRestart: MarkDead},
		outlastsKill: "a kill is the result no restart", outlastsShutdown: reasonShort,
	},
	AwaitRestartDelay: {
		name: "wait for the restart delay",
		note: "The delay can be 0. Failed destroys are repeated meanwhile.",
		next: map[Result]Step{Done: AwaitStartGate, Killed: MarkDead, AgentShutdown: DropUnusedStartID},
	},
	AwaitStartGate: {
		name: "wait for the tasks that must start first",
		note: "The order of the lifecycle applies to each start, restarts included.",
		next: map[Result]Step{Done: AwaitDriver, Killed: MarkDead, AgentShutdown: DropUnusedStartID},
	},
	AwaitDriver: {
		name: "wait until the driver is available",
		note: "The driver also destroys an earlier process that it has not destroyed yet; the step fails if it cannot.",
		next: map[Result]Step{Done: CallPrestartHooks, Failed: DecideRestart, Killed: MarkDead, AgentShutdown: DropUnusedStartID},
	},
	CallPrestartHooks: {
		name: "call the Prestart hooks",
		note: "A hook that is done is not called again. A kill cancels the hook that runs.",
		next: map[Result]Step{Done: StoreStartID, Failed: DecideRestart, Killed: MarkDead, AgentShutdown: DropUnusedStartID},
	},
	StoreStartID: {
		name: "store the id of the start",
		note: "From here on the next agent asks the driver whether the start was executed.",
		next: map[Result]Step{Done: AwaitPluginTasks, Failed: DecideRestart, Killed: MarkDead, AgentShutdown: DropUnusedStartID},
	},
	AwaitPluginTasks: {
		name: "wait until the plugin is ready for a start",
		note: "A new plugin process first recovers the tasks of the driver; after 30 seconds the step is done nevertheless. After plugins have died during starts, the step also waits, from a second up to a minute. It fails if no plugin serves the driver.",
		next: map[Result]Step{Done: StartTask, Failed: DecideRestart, Killed: MarkDead, AgentShutdown: DropUnusedStartID},
	},
	StartTask: {
		name: "start the task",
		note: "After a kill or a shutdown the driver has kill_timeout to answer. Then the driver destroys a killed start, which it may have executed; if it cannot, the destroy is repeated later.",
		next: map[Result]Step{
			Done: StoreHandle, PluginDied: QueryStart, Failed: DecideRestart, Killed: MarkDead,
			AgentShutdown: CallShutdownHooks, // with the start's id, which the next agent needs
		},
	},
	QueryStart: {
		name: "ask the driver about a start during which its plugin died",
		note: "Rounds as for a start of an earlier agent. A process that has exited is found too. The start is repeated up to four times: the step fails if the plugin died during the fifth call as well, and nothing was executed.",
		next: map[Result]Step{
			NothingExecuted: AwaitPluginTasks, NoAnswer: QueryStart, ProcessFound: StoreHandle, ExitUnknown: RecordExit, Failed: DecideRestart, Killed: MarkDead,
			AgentShutdown: CallShutdownHooks, // with the start's id, which the next agent needs
		},
	},
	StoreHandle: {
		name:         "store the handle of the process",
		note:         "Also stores that the task runs.",
		next:         map[Result]Step{Done: CallPoststartHooks},
		outlastsKill: reasonNextStep, outlastsShutdown: reasonNextStep,
	},
	CallPoststartHooks: {
		name:         "call the Poststart hooks",
		note:         "A kill, and the stop of the allocation before it, cancel the hook that runs. A requested restart waits until the hooks have ended, so that none is called for a process that is being stopped.",
		next:         map[Result]Step{Done: AwaitExit},
		outlastsKill: reasonNextStep, outlastsShutdown: reasonNextStep,
	},
	AwaitExit: {
		name: "wait for the exit",
		note: "The watch of the process outlasts the death of plugin processes, which recover the task. A force kill is a kill here.",
		next: map[Result]Step{Done: RecordExit, RestartRequested: CallPreKillingHooks, Killed: CallPreKillingHooks, AgentShutdown: CallShutdownHooks},
	},
	CallPreKillingHooks: {
		name:         "call the PreKilling hooks",
		note:         "A stop is the same for a kill and for a requested restart. A kill during a restart makes it a kill.",
		next:         map[Result]Step{Done: AwaitShutdownDelay, ForceKilled: ForceKill, AgentShutdown: CallShutdownHooks},
		outlastsKill: reasonStop,
	},
	AwaitShutdownDelay: {
		name: "wait for the shutdown delay",
		note: "The delay ends with the process. The result killed is only for a requested restart: it becomes a kill, whose hooks and delay start again.",
		next: map[Result]Step{
			Done: StopTask, ForceKilled: ForceKill, AgentShutdown: CallShutdownHooks,
			Killed: CallPreKillingHooks, // only during a requested restart: a kill has its own delay
		},
	},
	StopTask: {
		name:         "stop the process",
		note:         "StopTask is called once, and not for a process that has exited. Without an answer the driver is unavailable; failed means that it has refused the call.",
		next:         map[Result]Step{Done: AwaitExitAfterStop, NoAnswer: AwaitStopRetry, Failed: AwaitStopRetry, ForceKilled: ForceKill, AgentShutdown: CallShutdownHooks},
		outlastsKill: reasonStop,
	},
	AwaitStopRetry: {
		name: "wait until the stop can be repeated",
		note: "While the driver is unavailable, the step waits for it; after kill_timeout the agent kills a process of this machine itself. A driver that refuses the stop gets 5 attempts in 6 minutes; after those of a restart the task continues to run, and the caller of the restart gets the error.",
		next: map[Result]Step{
			Done: StopTask, RestartFailed: AwaitExit, ForceKilled: ForceKill, AgentShutdown: CallShutdownHooks,
			AttemptsUsedUp: AwaitExitAfterStop, // a kill does not end before the exit
		},
		outlastsKill: reasonStop,
	},
	AwaitExitAfterStop: {
		name: "wait for the exit after the stop",
		note: "The driver has kill_timeout and 10 seconds to report the exit. If it becomes unavailable meanwhile, the stop is repeated.",
		next: map[Result]Step{
			Done: RecordExit, ForceKilled: ForceKill, AgentShutdown: CallShutdownHooks,
			DriverUnavailable: StopTask, // the stop may not have been executed
			ExitNotReported:   DestroyWithoutExit,
		},
		outlastsKill: reasonStop,
	},
	DestroyWithoutExit: {
		name:         "destroy the process without a report of its exit",
		note:         "If the exit is not reported 10 seconds later, its status is unknown. If the driver refuses, the attempts to stop start again, without a limit.",
		next:         map[Result]Step{Done: RecordExit, Failed: StopTask, ForceKilled: ForceKill, AgentShutdown: CallShutdownHooks},
		outlastsKill: reasonStop,
	},
	ForceKill: {
		name:         "kill the process without delay",
		note:         "StopTask with SIGKILL, then DestroyTask, with 5 seconds each. If the driver is unavailable, the agent then ends the process itself, within 10 seconds. A process that has not exited has an unknown exit status, and must be destroyed.",
		next:         map[Result]Step{Done: RecordExit},
		outlastsKill: reasonStop, outlastsShutdown: "the step is short",
	},
	RecordExit: {
		name:         "store the exit",
		note:         "A record that the disk refuses is put again until it is stored. The step waits for that unless the task is killed. After a shutdown in between, the driver still has the exit.",
		next:         map[Result]Step{Done: DestroyProcess, AgentShutdown: CallShutdownHooks},
		outlastsKill: "the step no longer waits for the disk, and is done",
	},
	DestroyProcess: {
		name:         "let the driver destroy the process",
		note:         "A destroy that fails is repeated later.",
		next:         map[Result]Step{Done: CallExitedHooks},
		outlastsKill: reasonCleanup, outlastsShutdown: reasonNextStep,
	},
	MarkDead: {
		name:         "store that the task is dead",
		note:         "The id of a start that was not made is dropped.",
		next:         map[Result]Step{Done: AwaitRerun},
		outlastsKill: reasonShort, outlastsShutdown: reasonShort,
	},
	AwaitRerun: {
		name: "wait until the allocation ends or asks for a rerun",
		note: "Killed is also the result of an earlier kill, at once. Another task of the allocation or a user asks for the rerun. Failed destroys are repeated meanwhile.",
		next: map[Result]Step{
			RerunRequested: DecideRerun, AgentShutdown: CallShutdownHooks, Killed: DestroyRemaining,
			NoRerun: DestroyRemaining,
		},
	},
	DecideRerun: {
		name:         "apply the restart policy to a rerun",
		note:         "The policy restarts the task unless a kill has come.",
		next:         map[Result]Step{Restart: AwaitRestartDelay, NoRestart: DestroyRemaining},
		outlastsKill: "a kill is the result no restart", outlastsShutdown: reasonShort,
	},
	DestroyRemaining: {
		name:         "repeat failed destroys",
		note:         "The step has no limit, but after a force kill it does not repeat them. Without a failed destroy it does nothing.",
		next:         map[Result]Step{Done: CallStopHooks, AgentShutdown: CallShutdownHooks},
		outlastsKill: reasonCleanup,
	},
	CallStopHooks: {
		name:         "call the Stop hooks",
		next:         map[Result]Step{Done: None},
		outlastsKill: reasonCleanup, outlastsShutdown: reasonCleanup,
	},
	DropUnusedStartID: {
		name:         "store that no start is in progress",
		note:         "So the next agent need not ask the driver. A restart policy that has not decided yet decides again.",
		next:         map[Result]Step{Done: CallShutdownHooks},
		outlastsKill: reasonShort, outlastsShutdown: reasonShort,
	},
	CallShutdownHooks: {
		name:         "call the Shutdown hooks",
		note:         "A kill or a restart whose stop is not complete is stored; the next agent continues it.",
		next:         map[Result]Step{Done: None},
		outlastsKill: reasonCleanup, outlastsShutdown: reasonCleanup,
	},
	AbandonTask: {
		name: "end the task after an error of the agent",
		note: "A step has returned a result for which it has no row. The agent has killed the task, with an event that names the step and the result. The driver must destroy a start whose handle is not stored.",
		next: map[Result]Step{
			Done: MarkDead, ProcessFound: CallPreKillingHooks, ExitFound: CallExitedHooks,
		},
		outlastsKill: "the task is killed already", outlastsShutdown: reasonShort,
	},
}

// First returns a run's first step. restored means an earlier agent has run the task.
func First(restored bool) Step {
	if restored {
		return RecoverTask
	}
	return AwaitStartGate
}

// Next returns the step after a step with this result. It returns false if the table has no row for the result, which
// is an agent bug: then the caller must kill the task, and next is a step that leads to its end.
func Next(s Step, r Result) (next Step, ok bool) {
	if next, ok = table[s].next[r]; ok {
		return next, true
	}
	switch s {
	case CallPreKillingHooks, AwaitShutdownDelay, StopTask, AwaitStopRetry, AwaitExitAfterStop, DestroyWithoutExit:
		return ForceKill, false
	case ForceKill, RecordExit, DestroyProcess, CallExitedHooks, MarkDead, DestroyRemaining, CallStopHooks, DropUnusedStartID, CallShutdownHooks:
		return table[s].next[Done], false
	case DecideRestart, AbandonTask:
		return MarkDead, false
	case AwaitRerun:
		return DestroyRemaining, false
	}
	return AbandonTask, false
}

// String returns the step's name for users, for example "wait for the exit".
func (s Step) String() string {
	if s < stepCount && table[s].name != "" {
		return table[s].name
	}
	return "no step"
}

// String returns the result's name for users, for example "agent shutdown".
func (r Result) String() string {
	if r < resultCount {
		return resultNames[r]
	}
	return "unknown result"
}
