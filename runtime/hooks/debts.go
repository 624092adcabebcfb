package hooks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// Debt is a moment that is there to clean up and has failed. It is made up for
// when the plugin is there again, as long as there is a record of the allocation.
type Debt struct {
	Hook    string
	AllocID string
	Task    string // "" for the allocation
	Moment  hook.Moment
	Postrun *hook.AllocPostrunRequest `json:",omitempty"`
	Stop    *hook.TaskStopRequest     `json:",omitempty"`

	// How it was attached.
	Job string          `json:",omitempty"`
	Raw json.RawMessage `json:",omitempty"`
}

// ID names a debt: the same one is not owed twice.
func (d *Debt) ID() string { return d.AllocID + "/" + d.Task + "/" + d.Hook + "/" + d.Moment.String() }

// Debts keeps debts for the next agent.
type Debts interface {
	// Debts returns those of allocations that there is a record of, and forgets the
	// others.
	Debts() []Debt
	PutDebt(Debt) error
	DeleteDebt(Debt) error
}

// The pauses between attempts to make up for something.
const (
	debtPause     = time.Second
	mostDebtPause = time.Minute
)

// owe keeps what has failed for later. The error says so.
func (p *Plugin) owe(d Debt, err error) error {
	d.Hook, d.AllocID, d.Task = p.name, p.context.AllocID, p.context.Task
	d.Job, d.Raw = p.attachment.job, p.attachment.raw
	// What the hook shows to the host is made anew, and does not belong on the disk.
	if d.Postrun != nil {
		d.Postrun.Grant = hook.Grant{}
	}
	if d.Stop != nil {
		d.Stop.Grant = hook.Grant{}
	}
	if putErr := p.plugins.config.Debts.PutDebt(d); putErr != nil {
		return fmt.Errorf("%w; it is not tried again: %v", err, putErr)
	}
	select {
	case p.plugins.owed <- struct{}{}:
	default:
	}
	return fmt.Errorf("%w; it is tried again until it succeeds", err)
}

// Run makes up for what hooks owe, under this agent and those before it, until
// ctx ends.
func (p *Plugins) Run(ctx context.Context) {
	pause := debtPause
	for {
		left := 0
		for _, d := range p.config.Debts.Debts() {
			if err := p.settle(ctx, d); err != nil {
				left++
				p.logger.Debug("hook still owes a moment", "hook", d.Hook, "alloc_id", d.AllocID, "task", d.Task, "moment", d.Moment, "error", err)
				continue
			}
			if err := p.config.Debts.DeleteDebt(d); err != nil {
				p.logger.Error("settled debt of a hook not removed", "hook", d.Hook, "error", err)
			}
		}
		var again <-chan time.Time
		if left > 0 {
			again = time.After(pause)
			pause = min(2*pause, mostDebtPause)
		} else {
			pause = debtPause
		}
		select {
		case <-again:
		case <-p.owed:
			pause = debtPause
			select {
			case <-time.After(pause): // its call has failed just now
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// settle makes the call again.
func (p *Plugins) settle(ctx context.Context, d Debt) error {
	plugin := p.plugin(d.Hook, p.rule(d.Hook), attachment{made: true, job: d.Job, raw: d.Raw}, Context{
		AllocID: d.AllocID, Task: d.Task,
		WholeAlloc: func() ([]byte, error) { return nil, nil }, // it is in the request
		Emit:       func(*api.TaskEvent) {},
	})
	return plugin.once(ctx, d.Moment, func(ctx context.Context, r Remote, a asked) error {
		switch {
		case d.Postrun != nil:
			request := *d.Postrun
			request.Grant = a.Grant
			return r.Postrun(ctx, request)
		case d.Stop != nil:
			request := *d.Stop
			request.Grant = a.Grant
			return r.Stop(ctx, request)
		}
		return nil
	})
}
