package main

import (
	"os"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	sdktest.Hook(t, sdktest.Plugin{
		Path:   os.Args[0],
		Config: map[string]any{"drivers": []any{"raw_exec"}, "memory_max": 1024, "owner": true},
	})
}

func TestPolicy(t *testing.T) {
	strict := policy{AllowedDrivers: []string{"docker", "exec"}, MaxMemoryMB: 100, RequireOwnerMeta: true}
	owned := map[string]string{"owner": "me"}
	for _, test := range []struct {
		name   string
		policy policy
		task   hook.Task
		memory driver.Resources
		want   string // expected text of the error; "" means success
	}{
		{"no policy lets everything through", policy{}, hook.Task{Driver: "raw_exec"}, driver.Resources{MemoryMB: 1 << 20}, ""},
		{"what is allowed passes", strict, hook.Task{Driver: "exec", Meta: owned}, driver.Resources{MemoryMB: 100}, ""},
		{"another driver", strict, hook.Task{Name: "web", Driver: "raw_exec", Meta: owned}, driver.Resources{}, `task "web" uses the driver raw_exec; allowed here: docker, exec`},
		{"too much memory", strict, hook.Task{Name: "web", Driver: "exec", Meta: owned}, driver.Resources{MemoryMB: 101}, `task "web" asks for 101 MB of memory; allowed here: 100 MB`},
		{"memory without limit", strict, hook.Task{Name: "web", Driver: "exec", Meta: owned}, driver.Resources{MemoryMB: 1, MemoryMaxMB: driver.NoMemoryLimit}, `task "web" asks for memory without limit; allowed here: 100 MB`},
		{"too much memory at times", strict, hook.Task{Driver: "exec", Meta: owned}, driver.Resources{MemoryMB: 1, MemoryMaxMB: 200}, "200 MB"},
		{"no owner", strict, hook.Task{Driver: "exec"}, driver.Resources{}, "nobody owns the job"},
		{"everything at once", strict, hook.Task{Driver: "x"}, driver.Resources{MemoryMB: 101}, "\nnobody owns the job"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.policy.checkTask(hook.TaskPrestartRequest{Task: test.task, Resources: test.memory})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("it says %v, want %q", err, test.want)
			}
		})
	}
}
