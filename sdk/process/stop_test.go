package process

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// stoppableScript is a program that ignores SIGINT, exits with code 4 on SIGTERM, and
// writes a file when it is ready for both.
const stoppableScript = `trap '' INT; trap 'exit 4' TERM; echo >ready; while :; do sleep 0.01; done`

func startStoppable(t *testing.T) *Process {
	t.Helper()
	s := newStartRequest(t)
	p := startProcess(t, s, shellCommand(stoppableScript))
	waitForFile(t, s, "ready")
	return p
}

func TestStopWith(t *testing.T) {
	killed := driver.ExitResult{ExitCode: 137, Signal: 9}
	for name, test := range map[string]struct {
		timeout time.Duration
		request func(context.Context, *Process) error
		want    driver.ExitResult
	}{
		"the request makes the process exit": {time.Minute, func(ctx context.Context, p *Process) error {
			return p.Signal(ctx, "SIGTERM")
		}, driver.ExitResult{ExitCode: 4}},
		"a sequence": {time.Minute, func(ctx context.Context, p *Process) error {
			if err := p.Signal(ctx, "SIGINT"); err != nil {
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
				return p.Signal(ctx, "SIGTERM")
			case <-ctx.Done():
				return ctx.Err()
			}
		}, driver.ExitResult{ExitCode: 4}},
		"the process does not exit in time": {50 * time.Millisecond, func(ctx context.Context, p *Process) error {
			return p.Signal(ctx, "SIGINT")
		}, killed},
		"the request never returns": {50 * time.Millisecond, func(context.Context, *Process) error {
			select {}
		}, killed},
		"the request fails": {time.Minute, func(context.Context, *Process) error {
			return errors.New("no connection")
		}, killed},
		"the request panics": {time.Minute, func(context.Context, *Process) error {
			panic("no connection")
		}, killed},
	} {
		t.Run(name, func(t *testing.T) {
			p := startStoppable(t)
			// The package sdk waits for each task, so that Wait is called concurrently.
			concurrent := make(chan driver.ExitResult, 1)
			go func() {
				result, _ := p.Wait(t.Context())
				concurrent <- result
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := p.StopWith(ctx, test.timeout, func(ctx context.Context) error { return test.request(ctx, p) }); err != nil {
				t.Fatal(err)
			}
			if p.processID.Alive() {
				t.Error("the process runs")
			}
			if got := <-concurrent; got != test.want {
				t.Errorf("exit result %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestStopWithoutRequest(t *testing.T) {
	never := func(context.Context) error {
		t.Error("the request was called")
		return nil
	}
	t.Run("without a kill timeout", func(t *testing.T) {
		p := startStoppable(t)
		if err := p.StopWith(t.Context(), 0, never); err != nil || p.processID.Alive() {
			t.Errorf("StopWith = %v, process runs: %v", err, p.processID.Alive())
		}
	})
	t.Run("after the exit", func(t *testing.T) {
		p := startProcess(t, newStartRequest(t), shellCommand("exit 0"))
		waitExit(t, p)
		if err := p.StopWith(t.Context(), time.Minute, never); err != nil {
			t.Error(err)
		}
	})
}

func TestRequestEndsWithTheProcess(t *testing.T) {
	p := startStoppable(t)
	ended := make(chan error, 1)
	err := p.StopWith(t.Context(), time.Minute, func(ctx context.Context) error {
		if err := p.Signal(ctx, "SIGTERM"); err != nil {
			return err
		}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the context of the request has not ended")
	}
}

// A host that cancels StopTask calls it again; the process is not killed early.
func TestCancelledStopKillsNothing(t *testing.T) {
	p := startStoppable(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := p.StopWith(ctx, time.Minute, func(context.Context) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("StopWith = %v, want %v", err, context.Canceled)
	}
	if err := p.Signal(t.Context(), "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if got, want := waitExit(t, p), (driver.ExitResult{ExitCode: 4}); got != want {
		t.Errorf("exit result %+v, want %+v of SIGTERM", got, want)
	}
}

func TestWaitReturnsWhenItsContextEnds(t *testing.T) {
	p := startStoppable(t)
	untilEnd, end := context.WithCancel(t.Context())
	defer end()
	go p.Wait(untilEnd)
	waitUntil(t, "another caller waits", func() bool { return len(p.waitSemaphore) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait = %v, want %v", err, context.DeadlineExceeded)
	}
}
