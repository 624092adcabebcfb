package hooks

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// NoDeadline is a hook that has deadlines of its own, or waits for what has none.
type NoDeadline interface{ NoDeadline() }

var _ NoDeadline = (*AwaitPrevious)(nil)

// Call has a runner's call of a hook made, within a deadline unless the hook is
// Patient. It blocks until the hook has answered.
func Call(ctx context.Context, logger hclog.Logger, h hook.Hook, m hook.Point, deadline time.Duration, call func(context.Context) error) error {
	if _, ok := h.(NoDeadline); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	begin := time.Now()
	err := call(ctx)
	logger.Trace("hook called", "hook", h.Name(), "moment", m, "duration", time.Since(begin), "error", err)
	return err
}
