package descriptors

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

const (
	// PerTask is the number of descriptors that are reserved for a task. It takes five in the log collector (two FIFOs, two files
	// while it has output, the log directory), four in the agent and two in the keeper, which have the same limit.
	PerTask = 6

	// Reserved is the number of descriptors that a process needs for itself, and that tasks cannot have.
	Reserved = 64
)

// Node attributes with the numbers of objects that tasks can have. The agent reports them, and the scheduler reads them.
const (
	AttributeDescriptors = "nomad-lite.descriptors"
	AttributeProcesses   = "nomad-lite.processes"
	AttributePipes       = "nomad-lite.pipes"
)

// ForTasks returns the number of descriptors that tasks can have under a limit of open files per process. It is
// enough for one task.
func ForTasks(limit uint64) uint64 {
	if limit < Reserved+PerTask {
		return PerTask
	}
	return limit - Reserved
}

// Limiter limits the number of operations that run at one time and open files. Its methods may be called
// concurrently. A nil Limiter sets no limit.
type Limiter struct {
	runningOperations chan struct{} // contains a value for each operation that runs; the capacity is the limit
}

const (
	// descriptorsPerOperation is an upper limit of the files that an operation has open at one time: a hook opens a few
	// directories.
	descriptorsPerOperation = 64

	maxOperations = 256 // more operations at one time are not faster
)

// NewLimiter returns a Limiter for a process with a limit of open files.
func NewLimiter(limit uint64) *Limiter {
	return &Limiter{make(chan struct{}, min(max(limit/descriptorsPerOperation, 1), maxOperations))}
}

// Run calls the operation when fewer operations run than the limit allows. It returns the error of the operation, or
// the cause of ctx if the operation was not called.
func (l *Limiter) Run(ctx context.Context, operation func() error) error {
	if l == nil {
		return operation()
	}
	select {
	case l.runningOperations <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.runningOperations }()
	return operation()
}

// Delays between two calls of an operation that found no free descriptor.
const (
	firstRetryDelay = 50 * time.Millisecond
	maxRetryDelay   = 2 * time.Second
)

// Retry calls an operation until its error is not [osprocess.IsResourceExhausted], or until ctx is done. It returns
// the last error of the operation. The function onWait is called once, before the first repetition.
func Retry(ctx context.Context, onWait func(error), operation func() error) error {
	return RetryIf(ctx, osprocess.IsResourceExhausted, onWait, operation)
}

// RetryIf is [Retry] with another function that reports whether the resources for an operation were exhausted.
func RetryIf(ctx context.Context, isExhausted func(error) bool, onWait func(error), operation func() error) error {
	for delay := firstRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		err := operation()
		if !isExhausted(err) || ctx.Err() != nil {
			return err
		}
		if delay == firstRetryDelay {
			onWait(err)
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
