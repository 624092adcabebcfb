package model

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Task event types for which package api has no constant.
const (
	TaskHookFailed            = "Task hook failed"
	TaskHookMessage           = "Task hook message"
	TaskMainDead              = "Main Tasks Dead"
	TaskAllocUnhealthy        = "Alloc Unhealthy"
	TaskWaitingShutdownDelay  = "Waiting for shutdown delay"
	TaskSkippingShutdownDelay = "Skipping shutdown delay"
	TaskRestoreFailed         = "Failed Restoring Task"
	TaskAllocDirRemoved       = "Directory Removed"
	TaskAdopted               = "Adopted"
)

// Reasons in events for the API's restart calls.
const (
	RestartTaskReason    = "User requested task to restart"
	RestartRunningReason = "User requested running tasks to restart"
	RestartAllReason     = "User requested all tasks to restart"
)

// Each function below returns one event in the form Nomad clients expect: the flat fields, which old clients read, and Details
// have the same content.

// Most tasks have these details in common, so their events share them.
var (
	noDetails        = map[string]string{}
	taskSetupDetails = map[string]string{"message": buildingTaskDirMessage}
	exitCode0Details = map[string]string{"exit_code": "0", "signal": "0", "oom_killed": "false"}
)

// EventReceived reports that the node has received the task.
func EventReceived() *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskReceived, Details: noDetails}
}

const buildingTaskDirMessage = "Building Task Directory"

// EventReconnected reports that the task has continued to run while the servers of its cluster had given it up.
func EventReconnected() *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskClientReconnected, Details: noDetails}
}

// EventTaskSetup reports the setup before the first start.
func EventTaskSetup() *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskSetup, Message: buildingTaskDirMessage, Details: taskSetupDetails}
}

// EventSetupFailure fails a task whose allocation could not be set up.
func EventSetupFailure(cause string) *api.TaskEvent {
	return &api.TaskEvent{
		Type: api.TaskSetupFailure, SetupError: cause, FailsTask: true,
		Details: map[string]string{"setup_error": cause, "fails_task": "true"},
	}
}

// EventStarted reports that the task runs.
func EventStarted() *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskStarted, Details: noDetails}
}

// EventRestoreFailed reports that a restarted agent could not recover the task.
func EventRestoreFailed(cause string) *api.TaskEvent {
	return &api.TaskEvent{Type: TaskRestoreFailed, Message: "failed to restore task: " + cause, Details: map[string]string{}}
}

// EventOrphanTaskAdopted reports that the agent has adopted a running task whose records were lost with the state of
// the agent.
func EventOrphanTaskAdopted() *api.TaskEvent {
	return &api.TaskEvent{Type: TaskAdopted, Message: "the state had lost its record; the agent continues from the copy of the allocation and from the running process", Details: map[string]string{}}
}

// EventAllocDirRemoved reports why the directory of an ended allocation was removed before the
// allocation.
func EventAllocDirRemoved(reason string) *api.TaskEvent {
	message := "the directory of the allocation and its logs were removed: " + reason
	return &api.TaskEvent{Type: TaskAllocDirRemoved, Message: message, Details: map[string]string{"message": message, "reason": reason}}
}

// EventDriverMessage carries a message of the driver about the task.
func EventDriverMessage(message string, annotations map[string]string, at time.Time) *api.TaskEvent {
	details := maps.Clone(annotations)
	if details == nil {
		details = map[string]string{}
	}
	event := &api.TaskEvent{
		Type: api.TaskDriverMessage, DriverMessage: message, DisplayMessage: message, Details: details,
	}
	if !at.IsZero() {
		event.Time = at.UnixNano()
	}
	return event
}

// EventDriverUnavailable reports that no plugin process serves the driver of a started
// task.
func EventDriverUnavailable(cause string) *api.TaskEvent {
	return EventDriverMessage("driver unavailable, the task may still run: "+cause, nil, time.Time{})
}

// EventWaitingForDriver reports that the task starts as soon as its driver is available.
func EventWaitingForDriver(cause string) *api.TaskEvent {
	return EventDriverMessage("waiting for the driver's plugin: "+cause, nil, time.Time{})
}

// EventWaitingForServers reports that the task starts after the servers of the cluster have confirmed its allocation.
func EventWaitingForServers() *api.TaskEvent {
	return EventDriverMessage("waiting for the servers of the cluster: they may have moved the allocation to another node", nil, time.Time{})
}

// EventWaitingForUnknownTasks reports that the agent starts the task only after the allocation's unknown tasks have exited.
func EventWaitingForUnknownTasks() *api.TaskEvent {
	return EventDriverMessage("waiting for the end of tasks of this allocation that run without records of the agent: nomad-lite status lists them", nil, time.Time{})
}

// EventStartTaskNotAnswered reports that the driver has not answered the call that starts the task.
func EventStartTaskNotAnswered(driver string, waited time.Duration) *api.TaskEvent {
	return EventDriverMessage(fmt.Sprintf("driver %q has not answered StartTask for %s", driver, waited), nil, time.Time{})
}

// EventDriverOutOfFDsOrProcesses reports that the driver starts the task only when descriptors or processes are free.
func EventDriverOutOfFDsOrProcesses(driver, cause string) *api.TaskEvent {
	return EventDriverMessage(fmt.Sprintf("driver %q has no free file descriptors or processes, the start is repeated: %s", driver, cause), nil, time.Time{})
}

// EventDriverFailure reports why the driver could not start the task.
func EventDriverFailure(cause string) *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskDriverFailure, DriverError: cause, Details: map[string]string{"driver_error": cause}}
}

// EventFailedValidation reports an error in the task's configuration.
func EventFailedValidation(cause string) *api.TaskEvent {
	return &api.TaskEvent{
		Type: api.TaskFailedValidation, ValidationError: cause,
		Details: map[string]string{"validation_error": cause},
	}
}

// EventHookFailed reports the error of a hook.
func EventHookFailed(hook, cause string) *api.TaskEvent {
	message := hook + ": " + cause
	return &api.TaskEvent{Type: TaskHookFailed, Message: message, Details: map[string]string{"message": message}}
}

// EventWaitingForPlugin reports which plugin the task waits for before it can start.
func EventWaitingForPlugin(plugin string) *api.TaskEvent {
	return EventHookMessage("", "waiting for "+plugin+" to start", nil)
}

// EventWaitingForHookPlugin reports that the task starts as soon as the plugin of a hook is available.
func EventWaitingForHookPlugin(cause string) *api.TaskEvent {
	return EventHookMessage("", "waiting for the plugin of a hook: "+cause, nil)
}

// EventWaitingForDevicePlugin reports that the task starts as soon as the plugin of its devices is available.
func EventWaitingForDevicePlugin(cause string) *api.TaskEvent {
	return EventHookMessage("", "waiting for the plugin of the task's devices: "+cause, nil)
}

// EventDeviceHealth reports a change of the health of a device that the task has.
func EventDeviceHealth(message string) *api.TaskEvent { return EventHookMessage("", message, nil) }

// EventWaitingForFileDescriptors reports that the task starts only when other tasks have ended.
func EventWaitingForFileDescriptors(cause string) *api.TaskEvent {
	return EventHookMessage("", "waiting for file descriptors: "+cause, nil)
}

// EventOutputLost reports that output of the task cannot be written. lostBytes is the number of bytes lost so far.
func EventOutputLost(stream string, lostBytes int64, reason string) *api.TaskEvent {
	return newOutputLossEvent(fmt.Sprintf("%s is lost (%d bytes so far): %s", stream, lostBytes, reason), lostBytes)
}

// EventOutputResumed reports that output of the task is written again, after the loss of some bytes.
func EventOutputResumed(stream string, lostBytes int64) *api.TaskEvent {
	return newOutputLossEvent(fmt.Sprintf("%s is written again, %d bytes are lost", stream, lostBytes), lostBytes)
}

func newOutputLossEvent(text string, lostBytes int64) *api.TaskEvent {
	return EventHookMessage("", text, map[string]string{"bytes": strconv.FormatInt(lostBytes, 10)})
}

// EventAllocDirCheckFailed reports that the agent could not open the allocation directory when it
// restored the task, for a reason that is unrelated to the directory.
func EventAllocDirCheckFailed(cause string) *api.TaskEvent {
	return EventHookMessage("", "the agent could not check the allocation directory, the task stays as it is: "+cause, nil)
}

// EventDiskNotMigrated reports that the task starts without the data of the allocation that its allocation replaces.
func EventDiskNotMigrated(cause string) *api.TaskEvent {
	return EventHookMessage("", "the task starts without the data of the previous allocation: "+cause, nil)
}

// EventTerminated reports the end of the task's process.
func EventTerminated(exitCode, signal int, oomKilled bool, message string) *api.TaskEvent {
	details := exitCode0Details
	if exitCode != 0 || signal != 0 || oomKilled || message != "" {
		details = map[string]string{
			"exit_code":  strconv.Itoa(exitCode),
			"signal":     strconv.Itoa(signal),
			"oom_killed": strconv.FormatBool(oomKilled),
		}
	}
	if message != "" {
		details["exit_message"] = message
	}
	return &api.TaskEvent{
		Type: api.TaskTerminated, ExitCode: exitCode, Signal: signal, Message: message, Details: details,
	}
}

// EventRestarting reports that the task starts again after delay. reason may be empty.
func EventRestarting(reason string, delay time.Duration) *api.TaskEvent {
	return &api.TaskEvent{
		Type: api.TaskRestarting, RestartReason: reason, StartDelay: int64(delay),
		Details: map[string]string{"restart_reason": reason, "start_delay": strconv.FormatInt(int64(delay), 10)},
	}
}

// EventNotRestarting fails the task permanently.
func EventNotRestarting(reason string) *api.TaskEvent {
	return &api.TaskEvent{
		Type: api.TaskNotRestarting, RestartReason: reason, FailsTask: true,
		Details: map[string]string{"restart_reason": reason, "fails_task": "true"},
	}
}

// EventRestartSignal reports why the task is to be restarted.
func EventRestartSignal(reason string) *api.TaskEvent {
	return &api.TaskEvent{
		Type: api.TaskRestartSignal, RestartReason: reason,
		Details: map[string]string{"restart_reason": reason},
	}
}

// EventSignaling reports that a user sends a signal to the task. Details name the signal,
// the display message does not.
func EventSignaling(signal string) *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskSignaling, Details: map[string]string{"signal": signal}}
}

// EventSignalingReason reports that the task gets a signal, and why. The display message is the reason.
func EventSignalingReason(signal, reason string) *api.TaskEvent {
	event := EventSignaling(signal)
	event.TaskSignalReason, event.Details["task_signal_reason"] = reason, reason
	return event
}

// EventHookMessage carries a message of a hook.
func EventHookMessage(eventType, message string, details map[string]string) *api.TaskEvent {
	if eventType == "" {
		eventType = TaskHookMessage
	}
	told := map[string]string{"message": message}
	maps.Copy(told, details)
	return &api.TaskEvent{Type: eventType, Message: message, Details: told}
}

// Details in an event about an operation.
const (
	detailOperationID = "operation_id"
	detailOngoing     = "ongoing"
)

// SetEventOperation makes an event report an operation's progress, or its result unless ongoing is set. AppendTaskEvent replaces
// an operation's ongoing event with the next one.
func SetEventOperation(e *api.TaskEvent, operationID string, ongoing bool) {
	e.Details[detailOperationID] = operationID
	if ongoing {
		e.Details[detailOngoing] = "true"
	}
}

// EventOperationID returns the ID of the event's operation, or "".
func EventOperationID(e *api.TaskEvent) string { return e.Details[detailOperationID] }

// IsEventOfOngoingOperation reports whether an event is the progress of an operation that continued at its time.
func IsEventOfOngoingOperation(e *api.TaskEvent) bool { return e.Details[detailOngoing] == "true" }

// EventKilling reports that the task has killTimeout to end by itself.
func EventKilling(killTimeout time.Duration) *api.TaskEvent {
	return &api.TaskEvent{
		Type: api.TaskKilling, KillTimeout: killTimeout,
		Details: map[string]string{"kill_timeout": killTimeout.String()},
	}
}

// EventKillingReason reports why the task is killed; if failsTask is set, the event fails the
// task.
func EventKillingReason(reason string, failsTask bool) *api.TaskEvent {
	event := &api.TaskEvent{
		Type: api.TaskKilling, KillReason: reason, FailsTask: failsTask,
		Details: map[string]string{"kill_reason": reason},
	}
	if failsTask {
		event.Details["fails_task"] = "true"
	}
	return event
}

// EventKilled reports that a task was killed. killError is the error from a failed kill, otherwise empty.
func EventKilled(killError string) *api.TaskEvent {
	details := map[string]string{}
	if killError != "" {
		details["kill_error"] = killError
	}
	return &api.TaskEvent{Type: api.TaskKilled, KillError: killError, Details: details}
}

// EventWaitingShutdownDelay reports that the kill waits for the shutdown_delay.
func EventWaitingShutdownDelay(delay time.Duration) *api.TaskEvent {
	return &api.TaskEvent{
		Type:           TaskWaitingShutdownDelay,
		DisplayMessage: fmt.Sprintf("Waiting for shutdown_delay of %s before killing the task.", delay),
		Details:        map[string]string{},
	}
}

// EventSkippingShutdownDelay reports that the kill does not wait for the shutdown_delay.
func EventSkippingShutdownDelay(delay time.Duration) *api.TaskEvent {
	return &api.TaskEvent{
		Type:           TaskSkippingShutdownDelay,
		DisplayMessage: fmt.Sprintf("Skipping shutdown_delay of %s before killing the task.", delay),
		Details:        map[string]string{},
	}
}

// EventSiblingFailed reports that the task is killed because sibling has failed.
func EventSiblingFailed(sibling string) *api.TaskEvent {
	return &api.TaskEvent{
		Type: api.TaskSiblingFailed, FailedSibling: sibling,
		Details: map[string]string{"failed_sibling": sibling},
	}
}

// EventLeaderDead reports that the task is killed because the leader has ended.
func EventLeaderDead() *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskLeaderDead, Details: map[string]string{}}
}

// EventMainDead reports that a sidecar is killed because all main tasks have ended.
func EventMainDead() *api.TaskEvent {
	return &api.TaskEvent{Type: TaskMainDead, Details: map[string]string{}}
}

// EventAllocUnhealthy reports why a deployment counts the task's allocation as unhealthy.
func EventAllocUnhealthy(reason string) *api.TaskEvent {
	return &api.TaskEvent{Type: TaskAllocUnhealthy, Message: reason, Details: map[string]string{"message": reason}}
}

// displayMessage returns the event's fields as a sentence.
func displayMessage(e *api.TaskEvent) string {
	switch e.Type {
	case api.TaskReceived:
		return "Task received by client"
	case api.TaskStarted:
		return "Task started by client"
	case api.TaskDriverFailure:
		return textOrDefault(e.DriverError, "Failed to start task")
	case api.TaskFailedValidation:
		return textOrDefault(e.ValidationError, "Validation of task failed")
	case api.TaskSetupFailure:
		return textOrDefault(e.SetupError, "Task setup failed")
	case api.TaskTerminated:
		text := []string{fmt.Sprintf("Exit Code: %d", e.ExitCode)}
		if e.Signal != 0 {
			text = append(text, fmt.Sprintf("Signal: %d", e.Signal))
		}
		if e.Message != "" {
			text = append(text, fmt.Sprintf("Exit Message: %q", e.Message))
		}
		return strings.Join(text, ", ")
	case api.TaskRestarting:
		text := fmt.Sprintf("Task restarting in %s", time.Duration(e.StartDelay))
		if e.RestartReason != "" && e.RestartReason != api.AllocRestartReasonWithinPolicy {
			text = e.RestartReason + " - " + text
		}
		return text
	case api.TaskNotRestarting:
		return textOrDefault(e.RestartReason, "Task exceeded restart policy")
	case api.TaskRestartSignal:
		return textOrDefault(e.RestartReason, "Task signaled to restart")
	case api.TaskSignaling:
		return textOrDefault(e.TaskSignalReason, "Task being sent a signal")
	case api.TaskKilling:
		switch {
		case e.KillReason != "":
			return e.KillReason
		case e.KillTimeout != 0:
			return fmt.Sprintf("Sent interrupt. Waiting %s before force killing", e.KillTimeout)
		}
		return "Sent interrupt"
	case api.TaskKilled:
		return textOrDefault(e.KillError, "Task successfully killed")
	case api.TaskSiblingFailed:
		if e.FailedSibling == "" {
			return "Task's sibling failed"
		}
		return fmt.Sprintf("Task's sibling %q failed", e.FailedSibling)
	case api.TaskLeaderDead:
		return "Leader Task in Group dead"
	case TaskMainDead:
		return "Main tasks in the group died"
	}
	return e.Message
}

func textOrDefault(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
