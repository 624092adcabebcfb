package driver

import "errors"

// ErrTaskNotFound means that the driver does not know the task id. The text is
// Nomad's, and is how the error is recognised on the other side of the wire.
var ErrTaskNotFound = errors.New("task not found for given id")

// ErrPluginDown means that the plugin process has gone. The caller asks the
// supervisor for another one, and recovers its task there.
var ErrPluginDown = errors.New("plugin is shut down")

// Error is an error of StartTask that says whether another try may help.
type Error struct {
	Err         error
	Recoverable bool
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// IsRecoverable reports whether err says that another try may help. A plain
// error does not.
func IsRecoverable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Recoverable
}

// Recoverable marks err as one that another try may heal; nil stays nil.
func Recoverable(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Recoverable: true}
}
