package cli

import "fmt"

// ExitError makes the program exit with Code. If Err is nil, the program prints no error, because the command has
// already printed the reason.
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
