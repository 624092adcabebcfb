package programs

import (
	"context"
	"os"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveNoopHook is a hook that takes part in Prestart, and does nothing.
func serveNoopHook() { sdk.ServeHook(NoopHookPlugin{}) }

// NoopHookPlugin takes part in Prestart, and does nothing.
type NoopHookPlugin struct{}

func (NoopHookPlugin) Info() sdk.HookInfo { return sdk.HookInfo{Name: os.Args[1]} }

func (NoopHookPlugin) Prestart(context.Context, hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return hook.TaskPrestartResponse{}, nil
}
