package hookplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// PendingCleanup is a moment that is there to clean up and has failed. It is made up for
// when the plugin is there again, as long as there is a record of the allocation, or
// until a time.
type PendingCleanup struct {
	Hook    string
	AllocID string
	Task    string // "" for the allocation
	Moment  hook.Point

	// The request of the moment, which the state keeps under its name; see call.
	Postrun *hook.AllocPostrunRequest `json:",omitempty"`
	Stop    *hook.TaskStopRequest     `json:",omitempty"`
	Destroy *hook.AllocDestroyRequest `json:",omitempty"`

	Until time.Time // of what outlives the record of the allocation

	// How it was attached.
	Job string          `json:",omitempty"`
	Raw json.RawMessage `json:",omitempty"`
}

// ID names a debt: the same one is not owed twice.
func (d *PendingCleanup) ID() string {
	return d.AllocID + "/" + d.Task + "/" + d.Hook + "/" + d.Moment.String()
}

// CheckRecord returns an error if the record of a debt does not say which call is to
// be made.
func (d *PendingCleanup) CheckRecord() error {
	switch {
	case d.Hook == "" || d.AllocID == "":
		return errors.New("the record of a pending cleanup lacks its hook or its allocation")
	case d.Postrun == nil && d.Stop == nil && d.Destroy == nil:
		return errors.New("the record of a pending cleanup has no request that this build knows")
	}
	return nil
}

// call is the call of the moment with its request.
func (d *PendingCleanup) call() call {
	switch {
	case d.Postrun != nil:
		return bind(Remote.Postrun, d.Postrun, &d.Postrun.RequestMeta, &d.Postrun.Alloc)
	case d.Stop != nil:
		return bind(Remote.Stop, d.Stop, &d.Stop.RequestMeta, &d.Stop.Alloc)
	case d.Destroy != nil:
		return bind(Remote.Destroy, d.Destroy, &d.Destroy.RequestMeta, &d.Destroy.Alloc)
	}
	return func(context.Context, Remote, asked) error { return d.CheckRecord() }
}

// CleanupStore keeps debts for the next agent.
type CleanupStore interface {
	// Debts returns those of allocations that there is a record of, and forgets the
	// others. Records that do not read are left out.
	Debts() []PendingCleanup
	PutDebt(PendingCleanup) error
	DeleteDebt(PendingCleanup) error
}

// The pauses between attempts to make up for something.
const (
	debtPause     = time.Second
	mostDebtPause = time.Minute
)

// destroyTimeout is how long Destroy is owed of an allocation of which there is no
// record: a plugin that never succeeds must not fill the state.
const destroyTimeout = 24 * time.Hour

// enqueue keeps what has failed for later. The error says so.
func (h *Hook) enqueue(d PendingCleanup, err error) error {
	d.Hook, d.AllocID, d.Task = h.name, h.context.AllocID, h.context.Task
	d.Job, d.Raw = h.Attachment(), h.attachment.raw
	if putErr := h.set.config.Debts.PutDebt(d); putErr != nil {
		return fmt.Errorf("%w; it is not tried again: %v", err, putErr)
	}
	tick(h.set.owed)
	return fmt.Errorf("%w; it is tried again until it succeeds", err)
}

// Run makes up for what hooks owe, under this agent and those before it, until
// ctx ends. A hook that does not answer holds up nobody else's debts.
func (s *Set) Run(ctx context.Context) {
	working := make(map[string]chan struct{}) // by the hook's name; hold a tick when a debt is new
	ended := make(chan string)
	begin := func(name string) {
		fresh := make(chan struct{}, 1)
		working[name] = fresh
		go func() {
			s.retryLoop(ctx, name, fresh)
			ended <- name
		}()
	}
	for ctx.Err() == nil {
		for name := range s.pendingHooks() {
			if working[name] == nil {
				begin(name)
			}
		}
		select {
		case name := <-ended:
			delete(working, name) // and look again: it may have missed the last debt
		case <-s.owed:
			for _, fresh := range working {
				tick(fresh)
			}
			_ = pause(ctx, debtPause, nil) // its call has failed just now
		case <-ctx.Done():
		}
	}
	for range working {
		<-ended
	}
}

// Drain makes up for what can be made up for before ctx ends, and tells of what is
// left, for an agent after which there is none. Run must have returned.
func (s *Set) Drain(ctx context.Context) {
	var settling sync.WaitGroup
	for name := range s.pendingHooks() {
		settling.Go(func() { s.retryLoop(ctx, name, nil) })
	}
	settling.Wait()
	for _, d := range s.config.Debts.Debts() {
		s.logger.Warn("hook has not cleaned up, and is not told again", "hook", d.Hook, "alloc_id", d.AllocID, "task", d.Task, "moment", d.Moment)
	}
}

// pendingHooks returns the names of the hooks that owe something.
func (s *Set) pendingHooks() map[string]bool {
	names := make(map[string]bool)
	for _, d := range s.config.Debts.Debts() {
		names[d.Hook] = true
	}
	return names
}

// tick leaves a tick in c, unless it holds one.
func tick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// retryLoop makes up for what one hook owes, until that is nothing or ctx ends.
func (s *Set) retryLoop(ctx context.Context, hook string, fresh <-chan struct{}) {
	for between := debtPause; s.retryOnce(ctx, hook); {
		if pause(ctx, between, fresh) {
			between = debtPause
		} else {
			between = min(2*between, mostDebtPause)
		}
	}
}

// retryOnce makes up for what can be made up for now, and reports whether something
// is left to be tried again.
func (s *Set) retryOnce(ctx context.Context, hook string) (left bool) {
	debts := s.config.Debts.Debts()
	slices.SortStableFunc(debts, func(a, b PendingCleanup) int { return a.Until.Compare(b.Until) }) // destroy is the last of each
	for _, d := range debts {
		if d.Hook != hook || ctx.Err() != nil {
			continue
		}
		if err := s.settle(ctx, d); err != nil {
			left = true
			s.logger.Debug("hook still owes a moment", "hook", d.Hook, "alloc_id", d.AllocID, "task", d.Task, "moment", d.Moment, "error", err)
			continue
		}
		if err := s.config.Debts.DeleteDebt(d); err != nil {
			s.logger.Error("settled debt of a hook not removed", "hook", d.Hook, "error", err)
		}
	}
	return left && ctx.Err() == nil
}

// pause waits for a time, or until something is fresh, which it reports, or ctx ends.
func pause(ctx context.Context, d time.Duration, fresh <-chan struct{}) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-fresh:
		return true
	}
	return false
}

// settle makes the call again.
func (s *Set) settle(ctx context.Context, d PendingCleanup) error {
	h := s.hook(d.Hook, attachment{made: true, job: d.Job, raw: d.Raw}, Target{
		AllocID: d.AllocID, Task: d.Task,
		WholeAlloc: func() ([]byte, error) { return nil, nil }, // it is in the request
		Emit:       func(*api.TaskEvent) {},
	})
	return h.once(ctx, d.Moment, d.call())
}
