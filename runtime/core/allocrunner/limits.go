package allocrunner

import (
	"time"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

// Limits are the agent's limits and settings for the tasks of all allocations. A zero field means its default.
type Limits struct {
	MaxKillTimeout             time.Duration // kill_timeout maximum; default 30 s
	StatsSampleInterval        time.Duration // interval between resource usage samples; default 1 s
	PrerunAndPrestartTimeout   time.Duration // timeout for one Prerun or Prestart call; default 1 min
	OtherHookPointTimeout      time.Duration // timeout for one call at any other hook point; default 10 s
	RestartAllTasksDownTimeout time.Duration // how long RestartAll waits until all tasks are down; default 10 min
	NodeCPUMHz                 int64         // usable MHz on the node; 0 means unknown

	// FileOperationLimiter limits how many file-opening operations run at one time; nil means no limit.
	FileOperationLimiter *descriptors.Limiter
}

// WithDefaults returns the limits with defaults in place of zero values.
func (l Limits) WithDefaults() Limits {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&l.MaxKillTimeout, 30 * time.Second},
		{&l.StatsSampleInterval, time.Second},
		{&l.PrerunAndPrestartTimeout, time.Minute},
		{&l.OtherHookPointTimeout, 10 * time.Second},
		{&l.RestartAllTasksDownTimeout, 10 * time.Minute},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return l
}

func (l Limits) hookCallLimits() hooks.CallLimits {
	return hooks.CallLimits{StartHookPointTimeout: l.PrerunAndPrestartTimeout, OtherHookPointTimeout: l.OtherHookPointTimeout, BuiltinCallLimiter: l.FileOperationLimiter}
}
