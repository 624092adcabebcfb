package taskrunner

// recordedStart is what the record of a task says about its last start.
type recordedStart int

const (
	recordNoStart   recordedStart = iota // there is no start
	recordID                             // the record has the id of a start, and no handle
	recordRunningID                      // like recordID, and the task state is running: the handle was lost
	recordHandle                         // the record has the handle of the start
	recordLost                           // the task state is running, but the record has neither the id nor the handle of the start
	recordEnded                          // the record has the exit of the start, or the task is dead
	recordNextID                         // the record has the exit of a start, and the id of the start that follows that exit

	startRecordCount
)

// startQueryAnswer says what is known about the start that the record describes. For recordNextID that is the next start.
type startQueryAnswer int

const (
	// answerNone means that the driver is unavailable, could not find out whether the start was executed, or is still
	// starting the task.
	answerNone startQueryAnswer = iota
	// answerTask means that the driver has the task, which runs or has exited, and returns its handle.
	answerTask
	// answerTaskWithoutHandle means that the driver has the task and returns no handle, because the driver is not made
	// with package sdk.
	answerTaskWithoutHandle
	// answerNotExecuted means that the driver is sure that nothing of the task was executed.
	answerNotExecuted
	// answerUnknown means that the start may have been executed, but the driver has neither a process nor an exit status.
	answerUnknown
	// answerReboot means that the machine has rebooted since the start, so no process is left.
	answerReboot

	startAnswerCount
)

// startAction says what the agent does about a start of an earlier agent, or about a start during which the plugin died.
type startAction int

const (
	actionStart    startAction = iota // nothing was executed: the task starts
	actionAsk                         // the agent asks the driver again, and does nothing before the answer
	actionKeep                        // the agent keeps the recorded process, although the driver has not answered
	actionAdopt                       // the agent stores the handle that the driver has returned, and watches the task
	actionAwait                       // the agent watches the task by its id; the task cannot be recovered
	actionMarkLost                    // the start counts as executed with an unknown exit status: the driver destroys it, the restart policy decides
	actionDestroy                     // the exit status of the start is known: the driver destroys it
	actionForget                      // no driver is called: the restart policy decides about a stored exit, a task without one starts
)

// startActions is the rule by which no start is executed twice: only a start that certainly executed nothing is repeated.
var startActions = [startRecordCount][startAnswerCount]startAction{
	// columns: none, task, task without handle, not executed, unknown, reboot
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
