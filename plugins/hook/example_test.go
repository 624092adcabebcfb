package hook_test

import (
	"context"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// greetingHook is a hook with one hook point.
type greetingHook struct{}

func (greetingHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return hook.TaskPrestartResponse{Env: map[string]string{"GREETING": "hello, " + req.Task.Name}}, nil
}

// PointsOf finds the hook points of a value by its methods.
func ExamplePointsOf() {
	fmt.Println(hook.PointsOf(greetingHook{}))
	// Output: [prestart]
}

// RequestMeta.DecodeConfig decodes the configuration with which a job attaches the hook.
func ExampleRequestMeta_DecodeConfig() {
	req := hook.TaskPrestartRequest{RequestMeta: hook.RequestMeta{AttachmentJSON: []byte(`{"greeting": "good morning"}`)}}
	var config struct {
		Greeting string `codec:"greeting"`
	}
	err := req.DecodeConfig(&config)
	fmt.Println(config.Greeting, err)
	// Output: good morning <nil>
}
