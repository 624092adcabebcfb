package template

import (
	"errors"
	"fmt"
)

// permanentError is an error that kills the task, as in Nomad every error of a template. Other errors are those of the machine
// and of sources: the restart policy handles them.
type permanentError struct{ error }

func (p permanentError) Unwrap() error { return p.error }

func permanentErrorf(format string, args ...any) error {
	return permanentError{fmt.Errorf(format, args...)}
}

// newRenderError returns the error of a rendering with Nomad's prefix. It kills the task.
func newRenderError(text string) error { return permanentErrorf("Template failed: %s", text) }

func isPermanent(err error) bool {
	_, ok := errors.AsType[permanentError](err)
	return ok
}
