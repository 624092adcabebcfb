package taskrunner

// recordedStart is what the record of a task says about its last start.
type recordedStart int

const (
	recordNoStart   recordedStart = iota // no start
	recordID                             // the id of a start, and no handle
	recordRunningID                      // the same, and the task runs: the handle was lost
	recordHandle                         // a handle
	recordLost                           // the task runs, and the rest of its record was lost
	recordEnded                          // the exit of a start, or the task is dead
	recordNextID                         // the exit of a start, and the id of the start that follows it

	startRecordCount
)

// startQueryAnswer is what is known about the start of a record. For recordNextID it is about the start that follows.
type startQueryAnswer int

const (
	// answerNone means that the driver is unavailable, that it could not find out, or that the start is in progress.
	answerNone startQueryAnswer = iota
	// answerTask means that the driver has the task and its handle: a living process, or its exit status.
	answerTask
	// answerTaskWithoutHandle means that the driver has the task and returns no handle. It is not made with package sdk.
	answerTaskWithoutHandle
	// answerNotExecuted means that the start has left no mark: nothing of the task was executed.
	answerNotExecuted
	// answerUnknown means that there is a mark, and neither a process nor an exit status, or that a driver without
	// marks knows nothing of the start.
	answerUnknown
	// answerReboot means that the machine was booted since.
	answerReboot

	startAnswerCount
)

// startAction is what the agent does about a start of an earlier agent, or of a plugin process that has died.
type startAction int

const (
	actionStart    startAction = iota // the task starts
	actionAsk                         // the driver is asked again, and nothing happens before its answer
	actionKeep                        // the process is kept without an answer
	actionAdopt                       // it is the task, or its exit status: the handle is stored before anything else
	actionAwait                       // it is the task, and is awaited by its id; it cannot be recovered
	actionMarkLost                    // it counts as executed: exit status unknown, destroyed, the restart policy decides
	actionDestroy                     // its end is known: it is destroyed
	actionForget                      // no driver is called: the restart policy decides about an exit, other tasks start
)

// startActions is the rule by which no start is executed twice: only a start that certainly executed nothing is repeated.
var startActions = [startRecordCount][startAnswerCount]startAction{
	// columns: none, task, task alone, not executed, unknown, reboot
	recordNoStart:   {actionStart, actionStart, actionStart, actionStart, actionStart, actionForget},
	recordID:        {actionAsk, actionAdopt, actionAwait, actionStart, actionMarkLost, actionForget},
	recordRunningID: {actionAsk, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget},
	recordHandle:    {actionKeep, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget},
	recordLost:      {actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionForget},
	recordEnded:     {actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionForget},
	recordNextID:    {actionAsk, actionAdopt, actionAwait, actionDestroy, actionMarkLost, actionForget},
}

// startActionFor returns what the agent does about a start.
func startActionFor(record recordedStart, answer startQueryAnswer) startAction {
	return startActions[record][answer]
}
