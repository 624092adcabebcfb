package hooks

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// NoDeadline is a hook without a deadline of the runner: it applies its own, or none.
type NoDeadline interface{ NoDeadline() }

var _ NoDeadline = (*AwaitPrevious)(nil)

// Call calls a hook, within a deadline unless the hook is a NoDeadline. It blocks until
// the hook returns, and returns the hook's error.
func Call(ctx context.Context, logger hclog.Logger, h hook.Hook, point hook.Point, deadline time.Duration, call func(context.Context) error) error {
	if _, ok := h.(NoDeadline); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	begin := time.Now()
	err := call(ctx)
	logger.Trace("hook called", "hook", h.Name(), "hook_point", point, "duration", time.Since(begin), "error", err)
	return err
}
