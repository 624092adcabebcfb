package template

import (
	"errors"
	"fmt"
)

// permanentError kills the task, as each template error does on Nomad. The restart policy handles the other errors, which the machine or
// a template's source causes.
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
