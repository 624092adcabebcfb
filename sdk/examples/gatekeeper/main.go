// Command gatekeeper is a hook that enforces an operator's policy for tasks. It
// checks every task of every job against its configuration:
//
//	plugin "gatekeeper" {
//	  config {
//	    drivers    = ["raw_exec"] # drivers that tasks may use; default: all
//	    memory_max = 1024         # maximum memory of a task in MB; default: no limit
//	    owner      = true         # the job must have an owner in its meta
//	  }
//	}
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() { sdk.ServeHook(&gatekeeperHook{}) }

type gatekeeperHook struct {
	mu     sync.Mutex
	policy policy
}

// policy is the configuration in the plugin block of the agent.
type policy struct {
	AllowedDrivers   []string `codec:"drivers"`
	MaxMemoryMB      int64    `codec:"memory_max"`
	RequireOwnerMeta bool     `codec:"owner"`
}

var (
	_ sdk.Configurer    = (*gatekeeperHook)(nil)
	_ hook.TaskPrestart = (*gatekeeperHook)(nil)
)

func (*gatekeeperHook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    "gatekeeper",
		Version: "0.1.0",
		ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{
			"drivers":    hclspec.Attr("drivers", "list(string)", false),
			"memory_max": hclspec.Attr("memory_max", "number", false),
			"owner":      hclspec.Attr("owner", "bool", false),
		}),
		AllAllocs: true,
	}
}

func (g *gatekeeperHook) Configure(_ context.Context, config *sdk.Config) error {
	var p policy
	if err := config.Decode(&p); err != nil {
		return err
	}
	if p.MaxMemoryMB < 0 {
		return fmt.Errorf("memory_max: %d MB would let nothing through", p.MaxMemoryMB)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy = p
	return nil
}

// Prestart fails a task permanently if it violates the policy: the restart
// policy retries only errors that are marked by sdk.Recoverable.
func (g *gatekeeperHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if req.Running {
		return hook.TaskPrestartResponse{}, nil // a running task was checked before its start
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return hook.TaskPrestartResponse{}, g.policy.checkTask(req)
}

// checkTask returns an error with all violations of the policy, so that the user can
// fix all of them before the next attempt.
func (p policy) checkTask(req hook.TaskPrestartRequest) error {
	var violations []error
	if len(p.AllowedDrivers) > 0 && !slices.Contains(p.AllowedDrivers, req.Task.Driver) {
		violations = append(violations, fmt.Errorf("task %q uses the driver %s; allowed here: %s", req.Task.Name, req.Task.Driver, strings.Join(p.AllowedDrivers, ", ")))
	}
	if p.MaxMemoryMB > 0 && req.Resources.MemoryMaxMB == driver.NoMemoryLimit {
		violations = append(violations, fmt.Errorf("task %q asks for memory without limit; allowed here: %d MB", req.Task.Name, p.MaxMemoryMB))
	}
	if want := max(req.Resources.MemoryMB, req.Resources.MemoryMaxMB); p.MaxMemoryMB > 0 && want > p.MaxMemoryMB {
		violations = append(violations, fmt.Errorf("task %q asks for %d MB of memory; allowed here: %d MB", req.Task.Name, want, p.MaxMemoryMB))
	}
	if p.RequireOwnerMeta && req.Task.Meta["owner"] == "" {
		violations = append(violations, errors.New(`nobody owns the job; say who does: meta { owner = "…" }`))
	}
	return errors.Join(violations...)
}
