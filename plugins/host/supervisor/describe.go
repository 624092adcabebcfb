package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// Description is what a running plugin reports about itself.
type Description struct {
	Info         base.Info
	ConfigSchema *hclspec.Spec        // schema of the plugin block; nil means that a plugin block is not allowed
	Capabilities *driver.Capabilities // capabilities of a driver; nil for other types
	TaskSchema   *hclspec.Spec        // schema of the task config block; nil for other types than drivers
	Hook         *hook.Description    // description of a hook; nil for other types
}

// Describe calls the plugin that serves a driver, a hook or devices for its description. It blocks and fails like Driver and
// Hook.
func (s *Supervisor) Describe(ctx context.Context, key PluginKey) (*Description, error) {
	inst, watched, err := s.waitForPlugin(ctx, key, time.Time{})
	if err != nil {
		return nil, err
	}
	d := &Description{Info: inst.Info()}
	if d.ConfigSchema, err = inst.ConfigSchema(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if key.Type != base.TypeDriver {
		_, d.Hook = inst.Hook()
		return d, nil
	}
	if d.Capabilities, err = watched.Capabilities(ctx); err != nil {
		return nil, fmt.Errorf("%s: read capabilities: %w", key, err)
	}
	if d.TaskSchema, err = watched.TaskConfigSchema(ctx); err != nil {
		return nil, fmt.Errorf("%s: read task config schema: %w", key, err)
	}
	return d, nil
}
