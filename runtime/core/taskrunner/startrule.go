package taskrunner

import (
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// startAction says what the agent does about an earlier agent's start, or about a start during which the plugin died.
type startAction int

const (
	actionStart    startAction = iota // nothing was executed: the task starts
	actionAsk                         // the agent asks the driver again, and does nothing before the answer
	actionKeep                        // the agent keeps the recorded process, although the driver has not answered
	actionAdopt                       // the agent stores the handle returned by the driver, and watches the task
	actionAwait                       // the agent watches the task by its id; the task cannot be recovered
	actionMarkLost                    // the start counts as executed with an unknown exit status: the driver destroys it, the restart policy decides
	actionDestroy                     // the start has ended, and its exit is stored: the driver destroys it; a next start has executed nothing
	actionForget                      // no driver is called: the restart policy decides about a stored exit, a dead task stays dead, any other one starts
)

// startActions is the rule by which no start is executed twice: a start is repeated only if it certainly executed nothing.
var startActions = [record.StartCount][taskdriver.AnswerCount]startAction{
	// columns: none, task, task without handle, not executed, unknown, reboot
	record.NoStart:     {actionStart, actionStart, actionStart, actionStart, actionStart, actionForget},
	record.WithID:      {actionAsk, actionAdopt, actionAwait, actionStart, actionMarkLost, actionForget},
	record.RunningByID: {actionAsk, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget},
	record.WithHandle:  {actionKeep, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget},
	record.Lost:        {actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionForget},
	record.Ended:       {actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionForget},
	record.WithNextID:  {actionAsk, actionAdopt, actionAwait, actionDestroy, actionMarkLost, actionForget},
}

// startActionFor returns what the agent does about a start.
func startActionFor(start record.Start, answer taskdriver.Answer) startAction {
	return startActions[start][answer]
}
