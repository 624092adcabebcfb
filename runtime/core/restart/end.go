package restart

import "time"

// RecoveredAfter is the uptime after which a task's earlier failure no longer counts.
const RecoveredAfter = time.Minute

// RunEnd is how a task run, or an attempt to start one, has ended. The task runner sets it where it records the end, and
// stores it. The restart policy, job health, reasons and time lines decide by its fields, not by the task's events,
// which are for display.
type RunEnd struct {
	Time time.Time
	// StartFailed means no process was started. Error is the cause.
	StartFailed            bool `json:",omitempty"`
	StatusUnknown          bool `json:",omitempty"` // exit status unknown
	Success                bool `json:",omitempty"`
	RestartRequested       bool `json:",omitempty"` // a restart was requested
	RestartCountsAsFailure bool `json:",omitempty"` // the requested restart counts as a task failure
	// Stopped means the task was killed and had not failed before.
	Stopped bool `json:",omitempty"`

	ExitCode  int    `json:",omitempty"`
	Signal    int    `json:",omitempty"`
	OOMKilled bool   `json:",omitempty"`
	Error     string `json:",omitempty"` // driver error, why the exit status is unknown, or why the task was not started

	// RequestReason is the reason for a requested restart, for display.
	RequestReason string `json:",omitempty"`
	// RunsInRow is the number of failures in a row, this one included, with the same cause. A run as long as RecoveredAfter
	// starts a new row. It is zero unless IsFailure.
	RunsInRow int `json:",omitempty"`
	// NextStart is when the task starts again; zero if the restart policy has not decided yet or does not start it again.
	NextStart time.Time `json:",omitzero"`
	// OutputStart is a time between the last output of earlier processes and the first output of this one; zero if unknown.
	OutputStart time.Time `json:",omitzero"`
}

// IsFailure reports whether the task has ended without a request from a user or another task. It is false for nil. A clean
// exit counts: the caller knows whether the task may end.
func (e *RunEnd) IsFailure() bool {
	return e != nil && !e.Stopped && (!e.RestartRequested || e.RestartCountsAsFailure)
}

// HasCauseOf reports whether two ends have the same cause, such as the same exit status.
func (e *RunEnd) HasCauseOf(other *RunEnd) bool {
	return e.StartFailed == other.StartFailed && e.StatusUnknown == other.StatusUnknown && e.RestartRequested == other.RestartRequested &&
		e.ExitCode == other.ExitCode && e.Signal == other.Signal && e.OOMKilled == other.OOMKilled && (!e.StartFailed || e.Error == other.Error)
}

// Outcome returns the restart policy's input for the end of a process.
func (e *RunEnd) Outcome() RunOutcome {
	return RunOutcome{
		RestartRequested:          e.RestartRequested && !e.RestartCountsAsFailure,
		UnhealthyRestartRequested: e.RestartRequested && e.RestartCountsAsFailure,
		Success:                   e.Success,
	}
}
