package osprocess

import "fmt"

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
