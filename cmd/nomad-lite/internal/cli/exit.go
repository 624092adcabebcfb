package cli

import "fmt"

// ExitError ends the command with an exit code of its own. A nil Err prints nothing,
// because the command has already printed the reason.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text of Err, or the exit code.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }
