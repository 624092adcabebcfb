package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
)

// dispense returns the driver of the task. It blocks while the driver's plugin
// is being started.
type dispense func(context.Context) (driver.Driver, error)

// process is one start of the task in its driver. Whoever holds one may use it
// from any goroutine, also after the process has exited: a late call fails in
// the driver, and never touches the next start, which has another id.
type process struct {
	handle   *driver.Handle
	network  *driver.NetworkOverride // nil unless the driver gave an address
	dispense dispense

	exited chan struct{} // closed by the goroutine in watch, which sets result first
	result exit
}

// exit is how a process ended.
type exit struct {
	driver.ExitResult
	// lost means that the driver has no answer: its plugin died, and the next
	// one could not take the task over.
	lost bool
}

func newProcess(handle *driver.Handle, network *driver.NetworkOverride, d dispense) *process {
	return &process{handle: handle, network: network, dispense: d, exited: make(chan struct{})}
}

func (p *process) id() string { return p.handle.Config.ID }

// call runs f on the driver. When the plugin has died, before or during f, the
// next plugin takes the task over and f runs once more.
func (p *process) call(ctx context.Context, f func(driver.Driver) error) error {
	d, err := p.dispense(ctx)
	if err != nil {
		return err
	}
	err = f(d)
	down := errors.Is(err, driver.ErrPluginDown)
	unknown := errors.Is(err, driver.ErrTaskNotFound) && !isClosed(p.exited)
	if !down && !unknown {
		return err
	}
	d, recoverErr := p.recover(ctx)
	switch {
	case recoverErr == nil:
		return f(d)
	case unknown:
		return err
	}
	return recoverErr
}

// recover hands the task to a driver that may not know it.
func (p *process) recover(ctx context.Context) (driver.Driver, error) {
	d, err := p.dispense(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.RecoverTask(ctx, p.handle); err != nil {
		return nil, fmt.Errorf("recover task: %w", err)
	}
	return d, nil
}

// watch blocks until the process has exited, through the death of any number of
// plugins, or until ctx ends; only the former closes exited.
func (p *process) watch(ctx context.Context) {
	result := p.wait(ctx)
	if result.Err != nil && ctx.Err() != nil {
		return
	}
	p.result = result
	close(p.exited)
}

func (p *process) wait(ctx context.Context) exit {
	d, err := p.dispense(ctx)
	recovered := false
	for err == nil {
		var result *driver.ExitResult
		if result, err = d.WaitTask(ctx, p.id()); err == nil {
			return exit{ExitResult: *result}
		}
		down := errors.Is(err, driver.ErrPluginDown)
		unknown := errors.Is(err, driver.ErrTaskNotFound) && !recovered // by a plugin younger than the task
		if !down && !unknown {
			return exit{ExitResult: driver.ExitResult{Err: err}}
		}
		d, err = p.recover(ctx)
		recovered = true
	}
	return exit{ExitResult: driver.ExitResult{Err: err}, lost: true}
}

// destroy makes the driver forget the task, killing what may still run. A plugin
// that is younger than the task is told of it first, or it would leave alone what
// the task has left.
func (p *process) destroy(ctx context.Context) error {
	err := destroyKnown(ctx, p.dispense, p.id())
	down, unknown := errors.Is(err, driver.ErrPluginDown), errors.Is(err, driver.ErrTaskNotFound)
	if down || unknown {
		if _, recoverErr := p.recover(ctx); down || recoverErr == nil {
			err = destroyKnown(ctx, p.dispense, p.id())
		}
	}
	if errors.Is(err, driver.ErrTaskNotFound) {
		return nil
	}
	return err
}

func destroy(ctx context.Context, dispense dispense, id string) error {
	if err := destroyKnown(ctx, dispense, id); !errors.Is(err, driver.ErrTaskNotFound) {
		return err
	}
	return nil
}

// destroyKnown is destroy for who must hear that the driver knows no such task.
func destroyKnown(ctx context.Context, dispense dispense, id string) error {
	d, err := dispense(ctx)
	if err != nil {
		return err
	}
	return d.DestroyTask(ctx, id, true)
}

func (p *process) stop(ctx context.Context, timeout time.Duration, signal string) error {
	err := p.call(ctx, func(d driver.Driver) error { return d.StopTask(ctx, p.id(), timeout, signal) })
	if errors.Is(err, driver.ErrTaskNotFound) {
		return nil
	}
	return err
}

func (p *process) signal(ctx context.Context, name string) error {
	return p.call(ctx, func(d driver.Driver) error { return d.SignalTask(ctx, p.id(), name) })
}

func (p *process) exec(ctx context.Context, command []string, timeout time.Duration) (result *driver.ExecResult, err error) {
	err = p.call(ctx, func(d driver.Driver) (err error) {
		result, err = d.ExecTask(ctx, p.id(), command, timeout)
		return err
	})
	return result, err
}

// execStreaming is not repeated after the death of the plugin: part of the
// input may have gone.
func (p *process) execStreaming(ctx context.Context, exec driver.Exec) (result *driver.ExitResult, err error) {
	d, err := p.dispense(ctx)
	if err != nil {
		return nil, err
	}
	failpoint.Around(failpoint.Running, func() { result, err = d.ExecTaskStreaming(ctx, p.id(), exec) })
	return result, err
}

func (p *process) stats(ctx context.Context, interval time.Duration) (stream <-chan *driver.TaskStats, err error) {
	err = p.call(ctx, func(d driver.Driver) (err error) {
		stream, err = d.TaskStats(ctx, p.id(), interval)
		return err
	})
	return stream, err
}
