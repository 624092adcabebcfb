package allocrunner

import (
	"time"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// Limits are the agent's limits and settings for the tasks of all allocations. A zero field means its default.
type Limits struct {
	MaxKillTimeout             time.Duration     // maximum of kill_timeout; default 30 s
	StatsSampleInterval        time.Duration     // interval between samples of resource usage; default 1 s
	PrerunAndPrestartTimeout   time.Duration     // timeout of one Prerun or Prestart call; default 1 min
	OtherHookPointTimeout      time.Duration     // timeout of one call of any other hook point; default 10 s
	RestartAllTasksDownTimeout time.Duration     // timeout of RestartAll until all tasks are down; default 10 min
	UserDenylist               []string          // users that no task may have; default root, Administrator
	UserCheckedDrivers         []string          // drivers that UserDenylist applies to; default exec, qemu, java
	ReservedDownloadUIDs       idrange.Set       // user ids that are reserved for downloads and forbidden for tasks; default none
	NodeCPUMHz                 int64             // usable MHz of the node; 0 means unknown
	ChrootEnv                  map[string]string // host path -> path in the task, for tasks with isolation chroot; see allocdir.TaskDirOptions; default as in Nomad
	AllowNomadOpenFileModes    bool              // directories that cannot be closed to other accounts get the file modes of Nomad, which are open; see allocdir.TaskDirOptions

	// FileOperationLimiter limits the number of operations that open files at one time; nil means no limit.
	FileOperationLimiter *descriptors.Limiter
}

// WithDefaults returns the limits with the defaults in place of zero values.
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
	if l.ChrootEnv == nil {
		l.ChrootEnv = allocdir.DefaultChrootEnv()
	}
	if l.UserDenylist == nil {
		l.UserDenylist = []string{"root", "Administrator"}
	}
	if l.UserCheckedDrivers == nil {
		l.UserCheckedDrivers = []string{"exec", "qemu", "java"}
	}
	return l
}

func (l Limits) hookCallLimits() hooks.CallLimits {
	return hooks.CallLimits{StartHookPointTimeout: l.PrerunAndPrestartTimeout, OtherHookPointTimeout: l.OtherHookPointTimeout, BuiltinCallLimiter: l.FileOperationLimiter}
}
