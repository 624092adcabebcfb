package template

import "fmt"

// permanentError is an error that a retry cannot fix, because the template
// itself is wrong. It kills the task; other errors are handled by the restart
// policy.
type permanentError struct{ error }

func (r permanentError) Unwrap() error { return r.error }

func permanentErrorf(format string, args ...any) error {
	return permanentError{fmt.Errorf(format, args...)}
}

// renderError is an error with the prefix that Nomad uses for errors of
// templates.
type renderError struct{ error }

func (f renderError) Error() string { return "Template failed: " + f.error.Error() }

func (f renderError) Unwrap() error { return f.error }
