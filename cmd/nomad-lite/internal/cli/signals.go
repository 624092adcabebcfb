package cli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// ContextUntilInterrupted returns a context that ends when the process receives a termination signal. Further signals have
// no effect. It is for commands that follow output, for which an interrupt is no failure, and for commands that must not
// end in the middle of their work.
func ContextUntilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, TerminationSignals()...)
}

// TerminationSignals returns the signals that end a command. Signals that the process ignores since its start, as under
// nohup, are not among them.
func TerminationSignals() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	return slices.DeleteFunc(all, signal.Ignored)
}

// DuplicateSignalWindow is the time in which one signal can arrive twice: timeout(1) sends
// it to a process and to its group, and a shell passes on the SIGHUP of its terminal.
const DuplicateSignalWindow = 100 * time.Millisecond
