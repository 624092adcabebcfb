package allocrunner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/users"
)

// withUsers assigns users from an id range to tasks, for a driver with the capabilities c.
func withUsers(first, last uint32, c driver.Capabilities) func(*testConfig) {
	return func(config *testConfig) {
		config.Drivers.(*fakeDrivers).capabilities = c
		config.DynamicUserPool = users.NewPool(idrange.Range{First: first, Last: last})
	}
}

var usersSupported = driver.Capabilities{DynamicWorkloadUsers: true}

// A task that names no user gets one, keeps it across task and agent restarts, and gives it back when it has ended.
func TestTaskGetsUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, job("service", endlessTaskText)), withUsers(4_000_000, 4_000_000, usersSupported))
		a.advance(time.Second)
		wantEqual(t, "user", a.drivers.lastConfig("web").User, "nomad-4000000")
		a.die()
		a = a.startNextAgent(func(c *testConfig) { c.DynamicUserPool = nil })
		a.advance(time.Second)
		wantEqual(t, "user under an agent that assigns none", a.tasks.taskSet[0].Task().User, "nomad-4000000")
		a.die()
		pool := users.NewPool(idrange.Range{First: 4_000_001, Last: 4_000_001})
		a = a.startNextAgent(func(c *testConfig) { c.DynamicUserPool = pool })
		a.advance(time.Second)
		if err := a.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		a.advance(time.Second)
		wantEqual(t, "user under the next agent", a.drivers.lastConfig("web").User, "nomad-4000000")
		other := users.Task{AllocID: "other", Name: "web"}
		if id, err := pool.Acquire(other, 4_000_000); err != nil || id == 4_000_000 {
			t.Errorf("another task has user id %d, %v", id, err)
		}
		pool.Release(other)
		a.Stop()
		a.wait()
		if id, err := pool.Acquire(other, 4_000_000); err != nil || id != 4_000_000 {
			t.Errorf("the id is not free after the task: %d, %v", id, err)
		}
	})
}

func TestTaskGetsNoUser(t *testing.T) {
	for name, c := range map[string]struct {
		task         string
		capabilities driver.Capabilities
		want         string
	}{
		"the job names one":              {"task \"web\" {\n driver = \"fake\"\n user = \"nobody\"\n}", usersSupported, "nobody"},
		"the driver does not support it": {endlessTaskText, driver.Capabilities{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, job("service", c.task)), withUsers(4_000_000, 4_000_000, c.capabilities))
				a.advance(time.Second)
				wantEqual(t, "user", a.drivers.lastConfig("web").User, c.want)
			})
		})
	}
}

// A task does not start while all ids belong to other tasks.
func TestNoUserIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, job("service", "restart {\n attempts = 0\n mode = \"fail\"\n}\n"+endlessTaskText+"\ntask \"api\" { driver = \"fake\" }")), withUsers(4_000_000, 4_000_000, usersSupported))
		a.wait()
		wantEqual(t, "status", a.Status().ClientStatus, "failed")
	})
}
