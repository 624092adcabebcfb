package taskrunner

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
)

// buildTaskConfig returns the driver.TaskConfig for the next start, without the id of the start. It evaluates the
// config block anew for each start, because the block may refer to values that hooks have set. An error means that the
// job is invalid. buildTaskConfig belongs to the goroutine of Run.
func (r *Runner) buildTaskConfig() (*driver.TaskConfig, error) {
	config, task := r.requests.newTaskConfig()
	env := r.records.env.Build()
	var err error
	if config.DriverConfig, err = decodeConfigToMsgpack(r.schema, task.Config, env); err != nil {
		return nil, err
	}
	mountsSupported := r.DriverCapabilities().MountConfigs != driver.MountConfigsNone
	if config.Mounts, config.Devices, err = r.hooks.mergeHookMountsAndDevices(mountsSupported); err != nil {
		return nil, err
	}
	config.Env, config.DeviceEnv = env.Vars(), r.hooks.interpolatedDeviceEnv(env)
	return config, nil
}

func decodeConfigToMsgpack(schema *hclspec.Spec, config map[string]any, env *taskenv.Env) ([]byte, error) {
	value, diags := block.Decode(schema, config, env.TaskConfigHCLVars)
	if diags.HasErrors() {
		return nil, fmt.Errorf("failed to parse config: %s", strings.Join(block.Messages(diags), "; "))
	}
	b, err := block.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("failed to encode config: %w", err)
	}
	return b, nil
}
