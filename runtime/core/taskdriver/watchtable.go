package taskdriver

import (
	"errors"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// watchedTaskState is what the StartWatch watch knows about the task and its plugin process.
type watchedTaskState int

const (
	stateStarted       watchedTaskState = iota // the plugin process is assumed to have started the task
	stateRecovered                             // the plugin process has confirmed RecoverTask
	stateWithoutPlugin                         // no plugin process is known to have the task
	stateExited                                // WaitTask has returned the exit status, or an error in its place
	stateLost                                  // the driver does not have the task: exit status unknown
)

// watchCallOutcome is the outcome of one exitWatch driver call: RecoverTask in stateWithoutPlugin, WaitTask in
// stateStarted and stateRecovered.
type watchCallOutcome int

const (
	outcomeSuccess     watchCallOutcome = iota // the call succeeded
	outcomeUnavailable                         // no answer about the task, see IsTaskStateUnknown
	outcomeNotFound                            // the driver does not know the task
	outcomeError                               // any other driver error
)

// watchTransitions maps a watchedTaskState and its driver call's outcome to the next state. A plugin process's death
// never ends the watch: only the driver's answer does, or in stateWithoutPlugin an exit from
// AwaitExitWithoutDriverFunc.
var watchTransitions = [...][4]watchedTaskState{
	// columns: outcomeSuccess, outcomeUnavailable, outcomeNotFound, outcomeError
	stateStarted:       {stateExited, stateWithoutPlugin, stateWithoutPlugin, stateExited},
	stateRecovered:     {stateExited, stateWithoutPlugin, stateLost, stateExited},
	stateWithoutPlugin: {stateRecovered, stateWithoutPlugin, stateLost, stateLost},
}

func classifyWatchCallError(err error) watchCallOutcome {
	switch {
	case err == nil:
		return outcomeSuccess
	case IsTaskStateUnknown(err):
		return outcomeUnavailable
	case errors.Is(err, driver.ErrTaskNotFound):
		return outcomeNotFound
	}
	return outcomeError
}
