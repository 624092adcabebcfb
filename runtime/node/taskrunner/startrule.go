package taskrunner

import "github.com/nomad-lite/nomad-lite/runtime/node/taskrunner/taskdriver"

// recordedStartState is what the record of a task says about its last start.
type recordedStartState int

const (
	recordNoStart   recordedStartState = iota // there is no start
	recordID                                  // the record has the id of a start, and no handle
	recordRunningID                           // like recordID, and the task state is running: the handle was lost
	recordHandle                              // the record has the handle of the start
	recordLost                                // the task state is running, but the record has neither the id nor the handle of the start
	recordEnded                               // the record has the exit of the start, or the task is dead
	recordNextID                              // the record has the exit of a start, and the id of the start that follows that exit

	startRecordCount
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
var startActions = [startRecordCount][taskdriver.AnswerCount]startAction{
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
func startActionFor(record recordedStartState, answer taskdriver.Answer) startAction {
	return startActions[record][answer]
}
