package process

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// StopWith stops the process by a function of the driver instead of a signal: it calls
// request, which makes the program exit, and waits until the process has exited. It kills
// the process, as Kill does, if the process has not exited after timeout, or if request
// returns an error, which is logged. It returns when the process has exited.
//
// A driver's task that embeds a [ProcessWithoutExec] or a [Process] calls StopWith in its Stop, by which it
// implements sdk.Stopper:
//
//	func (t *task) Stop(ctx context.Context, req sdk.StopRequest) error {
//		return t.StopWith(ctx, req.Timeout, t.powerDown)
//	}
//
// request may be a sequence: it may block, send signals, and send others later. Its context
// ends when the process has exited, when timeout has passed, or when ctx ends; request must
// then return, and StopWith does not wait for it. A request that panics counts as an error.
// request is not called if timeout is 0 or less, or for a process that has exited. If ctx
// ends first, StopWith returns its error, and does not kill the process.
func (p *ProcessWithoutExec) StopWith(ctx context.Context, timeout time.Duration, request func(context.Context) error) error {
	if timeout > 0 && p.processID.Alive() {
		if p.stopByRequest(ctx, timeout, request) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if err := p.Kill(ctx); err != nil {
		return err
	}
	_, err := waitForResult(ctx, p)
	return err
}

// stopByRequest calls request, and returns true when the process has exited, or false when the process must be
// killed or ctx has ended.
func (p *ProcessWithoutExec) stopByRequest(ctx context.Context, timeout time.Duration, request func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	waited := make(chan error, 1)
	go func() {
		_, err := waitForResult(ctx, p) // an error means that ctx has ended
		waited <- err
	}()
	failed := make(chan error, 1)
	go func() {
		if err := callStopRequest(ctx, request); err != nil {
			failed <- err
		}
	}()
	select {
	case err := <-waited:
		return err == nil
	case err := <-failed:
		if ctx.Err() == nil {
			p.logger.Warn("stop request failed, killing the task", "error", err)
		}
		return false
	}
}

// callStopRequest calls request and converts a panic into an error, because a panic in a goroutine of this package
// would end the plugin.
func callStopRequest(ctx context.Context, request func(context.Context) error) (err error) {
	defer basewire.RecoverAndLogPanic(request, "StopWith", &err)
	return request(ctx)
}
