package process_test

import (
	"context"
	"os/exec"
	"strconv"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// pythonDriver runs Python programs.
type pythonDriver struct{}

func (pythonDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         "python",
		TaskSchema:   hclspec.Object(map[string]*hclspec.Spec{"program": hclspec.Attr("program", "string", true)}),
		Capabilities: driver.Capabilities{SendSignals: true}, // Exec is not declared: no other commands can run in a task
	}
}

func (pythonDriver) Start(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var config struct {
		Program string `codec:"program"`
	}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	return process.Start(ctx, start, process.Command{Path: "python3", Args: []string{config.Program}})
}

func (pythonDriver) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var state process.State
	if err := start.DecodeState(&state); err != nil {
		return nil, err
	}
	return process.Recover(ctx, start, state)
}

func (pythonDriver) Adopt(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	return process.Adopt(ctx, start)
}

// A driver for processes returns a Process from Start, from Recover and from Adopt.
func Example() {
	main := func() { sdk.ServeDriver(pythonDriver{}) }
	_ = main
}

// proxyTask is a process that is stopped by a command of its own.
type proxyTask struct{ *process.ProcessWithoutExec }

// Stop implements sdk.Stopper: the proxy gets the kill timeout to close its connections.
func (t *proxyTask) Stop(ctx context.Context, req sdk.StopRequest) error {
	return t.StopWith(ctx, req.Timeout, func(ctx context.Context) error {
		return exec.CommandContext(ctx, "proxyctl", "drain", strconv.Itoa(t.PID())).Run()
	})
}

// A task that embeds a ProcessWithoutExec adds its own Stop, and offers no exec.
func ExampleProcessWithoutExec_StopWith() {
	start := func(ctx context.Context, start *sdk.StartRequest) (*proxyTask, error) {
		p, err := process.StartWithoutExec(ctx, start, process.Command{Path: "proxy"})
		if err != nil {
			return nil, err
		}
		return &proxyTask{p}, nil
	}
	_ = start
}
