package template

import "fmt"

// permanentError is an error that no other try can heal: what the template asks for is
// wrong, whatever the data are. It ends the task; every other error is left to
// the restart policy.
type permanentError struct{ error }

func (r permanentError) Unwrap() error { return r.error }

func permanentErrorf(format string, args ...any) error {
	return permanentError{fmt.Errorf(format, args...)}
}

// failure is an error of a template in the words that Nomad's users know.
type failure struct{ error }

func (f failure) Error() string { return "Template failed: " + f.error.Error() }

func (f failure) Unwrap() error { return f.error }
