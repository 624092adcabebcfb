package allocrunner

import (
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/idrange"
)

// Limits are the agent's say in how tasks are treated. Zero values stand for
// the defaults.
type Limits struct {
	MaxKillTimeout     time.Duration // no kill_timeout counts for more; 30 s
	StatsInterval      time.Duration // 1 s
	PrerunDeadline     time.Duration // of one Prerun or Prestart hook; 1 min
	HookDeadline       time.Duration // of all other hooks; 10 s
	RestartDeadline    time.Duration // until all tasks are down in a restart of all; 10 min
	UserDenylist       []string      // users that no task may have; root, Administrator
	UserCheckedDrivers []string      // drivers for which that counts; exec, qemu, java
	DownloadUIDs       idrange.Set   // user ids that downloads have and no task may have; none
	NodeCPU            int64         // usable MHz of the node; 0 means unknown
	NomadModes         bool          // of directories that cannot be closed to other accounts; see allocdir.TaskOptions
}

func (l Limits) orDefault() Limits {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&l.MaxKillTimeout, 30 * time.Second},
		{&l.StatsInterval, time.Second},
		{&l.PrerunDeadline, time.Minute},
		{&l.HookDeadline, 10 * time.Second},
		{&l.RestartDeadline, 10 * time.Minute},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if l.UserDenylist == nil {
		l.UserDenylist = []string{"root", "Administrator"}
	}
	if l.UserCheckedDrivers == nil {
		l.UserCheckedDrivers = []string{"exec", "qemu", "java"}
	}
	return l
}
