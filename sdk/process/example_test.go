package process_test

import (
	"context"

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
	if err := start.Config(&config); err != nil {
		return nil, err
	}
	return process.Start(ctx, start, process.Command{Path: "python3", Args: []string{config.Program}})
}

func (pythonDriver) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var state process.State
	if err := start.State(&state); err != nil {
		return nil, err
	}
	return process.Recover(ctx, start, state)
}

// A driver for processes returns a Process from Start and from Recover.
func Example() {
	main := func() { sdk.ServeDriver(pythonDriver{}) }
	_ = main
}
