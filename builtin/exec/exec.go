package exec

import (
	"context"

	"github.com/nomad-lite/nomad-lite/builtin/isolated"
	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Name is the name of the driver in a job.
const Name = "exec"

// Driver is the driver exec. Its zero value is ready for use.
type Driver struct{ isolated.Driver }

var (
	_ sdk.Driver[*isolated.Task]    = (*Driver)(nil)
	_ sdk.Recoverer[*isolated.Task] = (*Driver)(nil)
	_ sdk.Adopter[*isolated.Task]   = (*Driver)(nil)
	_ sdk.Fingerprinter             = (*Driver)(nil)
)

// taskConfig is the `config` block of a task.
type taskConfig struct {
	isolated.TaskConfig
	Command     string   `codec:"command"`
	Args        []string `codec:"args"`
	OOMScoreAdj int      `codec:"oom_score_adj"`
}

var taskSchema = isolated.TaskSchema(map[string]*hclspec.Spec{
	"command":       hclspec.Attr("command", "string", true),
	"args":          hclspec.Attr("args", "list(string)", false),
	"oom_score_adj": hclspec.Attr("oom_score_adj", "number", false),
})

// Info describes the driver.
func (d *Driver) Info() sdk.DriverInfo { return isolated.NewDriverInfo(Name, taskSchema) }

// Fingerprint reports whether tasks can run, and which limits do not apply to them.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint { return sandbox.Fingerprint(Name) }

// Start starts the command of a task.
func (d *Driver) Start(ctx context.Context, start *sdk.StartRequest) (*isolated.Task, error) {
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		return nil, err
	}
	return d.StartCommand(ctx, start, &tc.TaskConfig, process.Command{Path: tc.Command, Args: tc.Args, OOMScoreAdj: tc.OOMScoreAdj})
}

// Adopt finds the command of a start whose plugin process has died.
func (d *Driver) Adopt(ctx context.Context, start *sdk.StartRequest) (*isolated.Task, error) {
	return d.AdoptCommand(ctx, start, func() (*isolated.TaskConfig, error) {
		var tc taskConfig
		err := start.DecodeConfig(&tc)
		return &tc.TaskConfig, err
	})
}
