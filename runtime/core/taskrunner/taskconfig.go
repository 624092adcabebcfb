package taskrunner

import (
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// buildTaskConfig returns the driver.TaskConfig for the next start, without the start's id. It evaluates the config block again
// for each start, because the block may refer to values set by hooks. An error means the job is invalid. buildTaskConfig belongs
// to Run's goroutine. It is not inlined, because its frame would enlarge Run's stack for as long as the task runs.
//
//go:noinline
func (r *Runner) buildTaskConfig() (*driver.TaskConfig, error) {
	config, task := r.requests.newTaskConfig()
	env := r.records.env.Build()
	var err error
	if config.DriverConfig, err = r.encodeTaskConfig(r.schema, task.Config, env.TaskConfigHCLVars); err != nil {
		return nil, err
	}
	mountsSupported := r.DriverCapabilities().MountConfigs != driver.MountConfigsNone
	if config.Mounts, config.Devices, err = r.hooks.mergeHookMountsAndDevices(mountsSupported); err != nil {
		return nil, err
	}
	config.Env, config.DeviceEnv = env.Vars(), r.hooks.interpolatedDeviceEnv(env)
	return config, nil
}
