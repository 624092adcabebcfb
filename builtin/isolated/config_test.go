package isolated

import (
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
)

func TestConfigIsChecked(t *testing.T) {
	for want, c := range map[string]Config{
		`default_pid_mode is "all"; it must be "private" or "host"`: {PIDMode: "all"},
		`default_ipc_mode is "all"; it must be "private" or "host"`: {IPCMode: "all"},
		"allow_caps: ":       {AllowCaps: []string{"root"}},
		"denied_host_uids: ": {Config: hostprocess.Config{DeniedUIDs: "x"}},
	} {
		if err := new(Driver).SetConfig(c); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
