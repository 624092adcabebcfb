package cli

import "strconv"

// ExitCode is an exit code of commands. Each command exits with 0 after a success.
type ExitCode struct {
	Condition string // condition under which the commands have the code
	Number    int    // exit code, or its start if Added is not empty
	Added     string // number that is added to Number
	Commands  string // paths of the commands, separated by commas; empty for all
}

// Text returns the number, and what is added to it.
func (c *ExitCode) Text() string {
	switch {
	case c.Added == "":
		return strconv.Itoa(c.Number)
	case c.Number == 0:
		return c.Added
	}
	return strconv.Itoa(c.Number) + " + " + c.Added
}

// Exit codes other than 0. They are promises, as docs/reference/compatibility.md describes; docs/promises/exit-codes.txt is written
// from ExitCodes.
var (
	Failed            = &ExitCode{"the command failed, and has no other code for that", 1, "", ""}
	MissingCommand    = &ExitCode{"the first word of the command line is missing or no command", 127, "", ""}
	PlanHasChanges    = &ExitCode{"an allocation would be placed or stopped", 1, "", "job plan, plan"}
	PlanFailed        = &ExitCode{"the plan failed", 255, "", "job plan, plan"}
	NotPlaced         = &ExitCode{"an allocation could not be placed", 2, "", "job run, job start, start, job dispatch, job eval, job periodic force, job promote, job revert, job scale, deployment promote, deployment fail, deployment resume, deployment unblock, alloc stop, eval status"}
	NotStarted        = &ExitCode{"the command line or the job was rejected, and nothing was run", 2, "", "run, plugin dev"}
	CommandExited     = &ExitCode{"the command exited", 0, "exit code of the command", "alloc exec, exec, job action, action, var lock"}
	SessionTerminated = &ExitCode{"a signal ended the session", 128, "number of the signal", "alloc exec, exec, job action, action"}
)

// ExitCodes are all exit codes other than 0.
var ExitCodes = []*ExitCode{Failed, MissingCommand, PlanHasChanges, PlanFailed, NotPlaced, NotStarted, CommandExited, SessionTerminated}
