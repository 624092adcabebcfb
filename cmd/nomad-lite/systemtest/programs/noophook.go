package programs

import (
	"context"
	"os"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveNoopHook serves NoopHookPlugin.
func serveNoopHook() { sdk.ServeHook(NoopHookPlugin{}) }

// NoopHookPlugin is a hook that subscribes to Prestart, and does nothing there. Its argument is its name.
type NoopHookPlugin struct{}

func (NoopHookPlugin) Info() sdk.HookInfo { return sdk.HookInfo{Name: os.Args[1]} }

func (NoopHookPlugin) Prestart(context.Context, hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return hook.TaskPrestartResponse{}, nil
}
