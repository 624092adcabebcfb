package template

import "fmt"

// permanentError is an error that a retry cannot fix, because the template
// itself is wrong. It kills the task; other errors are handled by the restart
// policy.
type permanentError struct{ error }

func (p permanentError) Unwrap() error { return p.error }

func permanentErrorf(format string, args ...any) error {
	return permanentError{fmt.Errorf(format, args...)}
}

// renderError is an error with the prefix that Nomad uses for errors of
// templates.
type renderError struct{ error }

func (r renderError) Error() string { return "Template failed: " + r.error.Error() }

func (r renderError) Unwrap() error { return r.error }
