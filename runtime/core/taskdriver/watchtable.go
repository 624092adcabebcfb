package taskdriver

import (
	"errors"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// watchedTaskState is what the watch of StartWatch knows about the task and its plugin process.
type watchedTaskState int

const (
	stateStarted       watchedTaskState = iota // the plugin process is assumed to have started the task
	stateRecovered                             // the plugin process has confirmed RecoverTask
	stateWithoutPlugin                         // no plugin process is known to have the task
	stateExited                                // WaitTask has returned the exit status, or an error in its place
	stateLost                                  // the driver does not have the task: exit status unknown
)

// watchCallOutcome is the outcome of one driver call of exitWatch: RecoverTask in stateWithoutPlugin, WaitTask in
// stateStarted and stateRecovered.
type watchCallOutcome int

const (
	outcomeSuccess     watchCallOutcome = iota // the call succeeded
	outcomeUnavailable                         // no answer about the task, see IsTaskStateUnknown
	outcomeNotFound                            // the driver does not know the task
	outcomeError                               // any other error of the driver
)

// watchTransitions maps a watchedTaskState and the outcome of its driver call to the next state. The death of a plugin
// process never ends the watch: only an answer of the driver does, or in stateWithoutPlugin an exit that
// AwaitExitWithoutDriverFunc returns.
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
