package osprocess

import (
	"errors"
	"fmt"
)

// ExitStatus is how a process ended: it exited with ExitCode, or was killed by Signal.
type ExitStatus struct {
	ExitCode int
	Signal   int
}

// String returns the status as text.
func (s ExitStatus) String() string {
	switch name := signalName(s.Signal); {
	case s.Signal != 0 && name != "":
		return fmt.Sprintf("killed by signal %d (%s)", s.Signal, name)
	case s.Signal != 0:
		return fmt.Sprintf("killed by signal %d", s.Signal)
	}
	return fmt.Sprintf("exit code %d", s.ExitCode)
}

// ErrOOMKilled is the exit message of a task that failed after the kernel had killed one of its processes for memory. The text
// is Nomad's.
var ErrOOMKilled = errors.New("OOM Killed")

// OOMError returns the exit message of a task whose main process ended with the status after the kernel had killed one of the
// task's processes for memory. It is nil if the main process was successful: the message would make the task fail.
func (s ExitStatus) OOMError() error {
	if s == (ExitStatus{}) {
		return nil
	}
	return ErrOOMKilled
}
