// Command script is a task driver whose tasks are scripts in the job file. It
// shows how little code a driver for processes needs: package sdk/process
// implements signals, exec, statistics, recovery and cleanup.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

func main() { sdk.ServeDriver(&scriptDriver{}) }

type scriptDriver struct{}

var (
	_ sdk.Driver[*process.Process]    = (*scriptDriver)(nil)
	_ sdk.Recoverer[*process.Process] = (*scriptDriver)(nil)
	_ sdk.Adopter[*process.Process]   = (*scriptDriver)(nil)
	_ sdk.OrphanKiller                = (*scriptDriver)(nil)
)

type taskConfig struct {
	Interpreter []string `codec:"interpreter"`
	Script      string   `codec:"script"`
}

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"interpreter": hclspec.Default(hclspec.Attr("interpreter", "list(string)", false), hclspec.Literal(`["/bin/sh", "-e"]`)),
	"script":      hclspec.Attr("script", "string", true),
})

func (*scriptDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         "script",
		Version:      "0.1.0",
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{SendSignals: true, Exec: true},
	}
}

func (*scriptDriver) Start(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var config taskConfig
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	if len(config.Interpreter) == 0 {
		return nil, fmt.Errorf("interpreter is empty")
	}
	// os.Root ensures that the file is inside the task's directory, in which the task could
	// place symbolic links.
	dir, err := os.OpenRoot(start.TaskDir())
	if err != nil {
		return nil, sdk.Recoverable(err)
	}
	defer dir.Close()
	if err := dir.WriteFile("local/script", []byte(config.Script), 0o644); err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("write the script: %w", err))
	}
	return process.Start(ctx, start, process.Command{
		Path: config.Interpreter[0],
		Args: append(config.Interpreter[1:], filepath.Join(start.TaskDir(), "local", "script")),
	})
}

func (*scriptDriver) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var s process.State
	if err := start.DecodeState(&s); err != nil {
		return nil, err
	}
	return process.Recover(ctx, start, s)
}

func (*scriptDriver) Adopt(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	return process.Adopt(ctx, start)
}

func (*scriptDriver) Sweep(ctx context.Context, req sdk.SweepRequest) (bool, error) {
	return process.Sweep(ctx, req)
}
