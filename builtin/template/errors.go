package template

import "fmt"

// permanentError is an error that a retry cannot fix: the template is wrong,
// whatever the data. It kills the task; every other error is left to the restart
// policy.
type permanentError struct{ error }

func (r permanentError) Unwrap() error { return r.error }

func permanentErrorf(format string, args ...any) error {
	return permanentError{fmt.Errorf(format, args...)}
}

// renderError is an error of a template with Nomad's text.
type renderError struct{ error }

func (f renderError) Error() string { return "Template failed: " + f.error.Error() }

func (f renderError) Unwrap() error { return f.error }
