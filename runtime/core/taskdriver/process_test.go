package taskdriver

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// scriptedDriver returns the next answer to each call, and repeats the last one.
type scriptedDriver struct {
	driver.Driver // nil, because methods without an override are not called
	waitErrs      []error
	signalErrs    []error
	destroyErrs   []error
	recoverErrs   []error
	calls         []string
}

func popErr(list *[]error) error {
	err := (*list)[0]
	if len(*list) > 1 {
		*list = (*list)[1:]
	}
	return err
}

func (s *scriptedDriver) WaitTask(context.Context, string) (*driver.ExitResult, error) {
	s.calls = append(s.calls, "wait")
	if err := popErr(&s.waitErrs); err != nil {
		return nil, err
	}
	return &driver.ExitResult{ExitCode: 7}, nil
}

func (s *scriptedDriver) SignalTask(context.Context, string, string) error {
	s.calls = append(s.calls, "signal")
	return popErr(&s.signalErrs)
}

func (s *scriptedDriver) DestroyTask(context.Context, string, bool) error {
	s.calls = append(s.calls, "destroy")
	return popErr(&s.destroyErrs)
}

func (s *scriptedDriver) RecoverTask(context.Context, *driver.Handle) error {
	s.calls = append(s.calls, "recover")
	return popErr(&s.recoverErrs)
}

func (s *scriptedDriver) process() *Process {
	access := &Access{Dispense: func(context.Context) (driver.Driver, error) { return s, nil }}
	return access.NewProcess(&driver.Handle{Config: &driver.TaskConfig{ID: "a/t/1"}}, nil)
}

var (
	errPermanent    = errors.New("gone")
	errPluginDown   = driver.ErrPluginDown
	errTaskNotFound = driver.ErrTaskNotFound

	errBusy = driver.Recoverable(errors.New("too many open files"))
)

func TestWatchProcess(t *testing.T) {
	for _, c := range []struct {
		name          string
		wait, recover []error
		code          int
		err           error
		lost          bool
		calls         []string
	}{
		{"the exit is told", []error{nil}, nil, 7, nil, false, []string{"wait"}},
		{"RS-050: the plugin dies twice", []error{errPluginDown, errPluginDown, nil}, []error{nil}, 7, nil, false,
			[]string{"wait", "recover", "wait", "recover", "wait"}},
		{"the plugin died before anybody asked", []error{errTaskNotFound, nil}, []error{nil}, 7, nil, false,
			[]string{"wait", "recover", "wait"}},
		{"the next plugin does not find the task", []error{errPluginDown}, []error{errPermanent}, 0, errPermanent, true,
			[]string{"wait", "recover"}},
		{"the next plugin does not know the task", []error{errPluginDown}, []error{errTaskNotFound}, 0, errTaskNotFound, true,
			[]string{"wait", "recover"}},
		{"a plugin that forgets is not asked for ever", []error{errTaskNotFound}, []error{nil}, 0, errTaskNotFound, true,
			[]string{"wait", "recover", "wait"}},
		{"the next plugin cannot find out at first", []error{errPluginDown, nil}, []error{errBusy, errBusy, nil}, 7, nil, false,
			[]string{"wait", "recover", "recover", "recover", "wait"}},
		{"any other error is the end of the task", []error{errPermanent}, nil, 0, errPermanent, false, []string{"wait"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &scriptedDriver{waitErrs: c.wait, recoverErrs: c.recover}
				p := a.process()
				watchUntilEnd(t.Context(), p)
				<-p.exited
				r := p.exit
				if r.ExitCode != c.code || !errors.Is(r.Err, c.err) || r.StatusUnknown != c.lost {
					t.Errorf("got %+v, want code %d, error %v, lost %v", r, c.code, c.err, c.lost)
				}
				if !slices.Equal(a.calls, c.calls) {
					t.Errorf("calls %v, want %v", a.calls, c.calls)
				}
			})
		})
	}
}

// watchUntilEnd blocks until p's watch has ended.
func watchUntilEnd(ctx context.Context, p *Process) {
	ended := make(chan struct{})
	p.StartWatch(ctx, func() { close(ended) })
	<-ended
}

func TestDestroyAfterPluginRestart(t *testing.T) {
	for _, c := range []struct {
		name             string
		destroy, recover []error
		want             error
		calls            []string
	}{
		{"nothing happens", []error{nil}, nil, nil, []string{"destroy"}},
		{"an error is an answer", []error{errPermanent}, nil, errPermanent, []string{"destroy"}},
		{"the plugin dies", []error{errPluginDown, nil}, []error{nil}, nil, []string{"destroy", "recover", "destroy"}},
		{"the next plugin does not find the task, and looks for remains", []error{errPluginDown, errTaskNotFound}, []error{errPermanent}, nil, []string{"destroy", "recover", "destroy"}},
		{"a plugin younger than the task", []error{errTaskNotFound, nil}, []error{nil}, nil, []string{"destroy", "recover", "destroy"}},
		{"nobody knows it any more", []error{errTaskNotFound}, []error{errPermanent}, nil, []string{"destroy", "recover"}},
		{"a plugin that does not know the task cannot find out", []error{errTaskNotFound}, []error{errBusy}, errBusy, []string{"destroy", "recover"}},
		{"nor can the one after a death", []error{errPluginDown}, []error{errBusy}, errBusy, []string{"destroy", "recover"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &scriptedDriver{destroyErrs: c.destroy, recoverErrs: c.recover}
			if err := a.process().DestroyTask(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if !slices.Equal(a.calls, c.calls) {
				t.Errorf("calls %v, want %v", a.calls, c.calls)
			}
		})
	}
}

// A driver that does not answer in time has not confirmed that the task is gone.
func TestDestroyTimeout(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &scriptedDriver{destroyErrs: []error{errTaskNotFound}, recoverErrs: []error{ctx.Err()}}
	if err := a.process().DestroyTask(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestWatchEndsWithoutAnExit(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := (&scriptedDriver{waitErrs: []error{context.Canceled}}).process()
	watchUntilEnd(ctx, p)
	if wait.IsClosed(p.exited) {
		t.Error("a process that was no longer watched has exited")
	}
}

func TestDriverCallAfterPluginRestart(t *testing.T) {
	for _, c := range []struct {
		name            string
		signal, recover []error
		exited          bool
		want            error
		calls           []string
	}{
		{"nothing happens", []error{nil}, nil, false, nil, []string{"signal"}},
		{"an error is an answer", []error{errPermanent}, nil, false, errPermanent, []string{"signal"}},
		{"the plugin dies", []error{errPluginDown, nil}, []error{nil}, false, nil, []string{"signal", "recover", "signal"}},
		{"the plugin dies twice", []error{errPluginDown}, []error{nil}, false, errPluginDown, []string{"signal", "recover", "signal"}},
		{"the next plugin does not find the task", []error{errPluginDown}, []error{errPermanent}, false, errPermanent, []string{"signal", "recover"}},
		{"a plugin younger than the task", []error{errTaskNotFound, nil}, []error{nil}, false, nil, []string{"signal", "recover", "signal"}},
		{"a plugin that cannot find out", []error{errTaskNotFound}, []error{errBusy}, false, errBusy, []string{"signal", "recover"}},
		{"a plugin that cannot know the task", []error{errTaskNotFound}, []error{errPermanent}, false, errTaskNotFound, []string{"signal", "recover"}},
		{"a process that has exited is not recovered", []error{errTaskNotFound}, nil, true, errTaskNotFound, []string{"signal"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &scriptedDriver{signalErrs: c.signal, recoverErrs: c.recover}
			p := a.process()
			if c.exited {
				close(p.exited)
			}
			if err := p.SignalTask(t.Context(), "SIGHUP"); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if !slices.Equal(a.calls, c.calls) {
				t.Errorf("calls %v, want %v", a.calls, c.calls)
			}
		})
	}
}
