package allocrunner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// RS-005.
func TestRestartDelayHasJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := `task %q {
			driver = "fake"
			config {
				run_for    = "1s"
				exit_codes = [1]
			}
		}
		`
		h := startHarness(t, parseJob(t, job("service", "restart {\n attempts = 1000\n delay = \"8s\"\n interval = \"24h\"\n}\n"+
			fmt.Sprintf(task, "a")+fmt.Sprintf(task, "b"))), nil)
		h.advance(10 * time.Minute)
		h.Stop()
		h.wait()
		delays := make(map[string][]time.Duration)
		for _, name := range []string{"a", "b"} {
			for _, e := range h.taskState(name).Events {
				if e.Type != api.TaskRestarting {
					continue
				}
				d := time.Duration(e.StartDelay)
				if d < 8*time.Second || d >= 10*time.Second {
					t.Errorf("%s: delay of %v", name, d)
				}
				delays[name] = append(delays[name], d)
			}
			if n := h.taskState(name).Restarts; n < 50 {
				t.Errorf("%s: %d restarts", name, n)
			}
		}
		if slices.Equal(delays["a"], delays["b"]) {
			t.Error("two tasks have the same delays")
		}
	})
}

func TestTaskConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := parseJob(t, `job "j" {
			type      = "service"
			group "g" {
				network {
					dns { servers = ["10.0.0.1"] }
					port "http" {}
				}
				task "web" {
					driver = "fake"
					user   = "nobody"
					resources {
						cpu        = 200
						memory     = 64
						memory_max = 128
					}
					config {
						args = ["${NOMAD_ALLOC_ID}", "${NOMAD_TASK_NAME}", "${attr.kernel.name}", "${node.unique.name}", "$${upper(NOMAD_JOB_ID)}"]
					}
				}
			}
		}`)
		h := startHarness(t, j, func(c *testConfig) {
			c.Limits.NodeCPUMHz = 4000
			c.Alloc.Job.ParentID = new("parent")
			granted := c.Alloc.AllocatedResources
			granted.Tasks["web"].Memory.MemoryMaxMB = 128
			granted.Shared.Ports = []api.PortMapping{{Label: "http", Value: 20000, To: 80, HostIP: "192.0.2.1"}}
		})
		h.advance(time.Second)
		c := h.drivers.lastConfig("web")
		if !strings.HasPrefix(c.ID, testAllocID+"/web/") || len(c.ID) != len(testAllocID+"/web/")+8 {
			t.Errorf("id %q", c.ID)
		}
		wantEqual(t, "identity", []string{c.Name, c.JobName, c.JobID, c.ParentJobID, c.TaskGroupName, c.Namespace, c.NodeName, c.NodeID, c.AllocID, c.User},
			[]string{"web", "j", "j", "parent", "g", "default", "node-name", "node-id", testAllocID, "nobody"})
		wantEqual(t, "alloc dir", filepath.Base(c.AllocDir), testAllocID)
		wantEqual(t, "output", []string{c.StdoutPath, c.StderrPath},
			[]string{h.Dir().LogDir() + "/.web.stdout.fifo", h.Dir().LogDir() + "/.web.stderr.fifo"})
		r := *c.Resources
		wantEqual(t, "resources", r, driver.Resources{CPUShares: 200, MemoryMB: 64, MemoryMaxMB: 128,
			Ports: []driver.PortMapping{{Label: "http", Value: 20000, To: 80, HostIP: "192.0.2.1"}},
			Linux: driver.LinuxResources{CPUShares: 200, MemoryLimitBytes: 128 << 20, PercentTicks: 0.05}})
		wantEqual(t, "dns", c.DNS.Servers, "[10.0.0.1]")
		wantEqual(t, "network status", h.lastUpdate().NetworkStatus.DNS.Servers, "[10.0.0.1]")
		wantEqual(t, "network", c.NetworkIsolation == nil, true)
		wantEqual(t, "port", c.Env["NOMAD_PORT_http"], "80")
		wantEqual(t, "memory", c.Env["NOMAD_MEMORY_MAX_LIMIT"], "128")

		var args []string
		for id, task := range h.drivers.tasks {
			wantEqual(t, "id of the process", id, c.ID)
			args = task.Args
		}
		wantEqual(t, "args", args, []string{testAllocID, "web", "linux", "node-name", "J"})

		before := c.ID
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		if h.drivers.lastConfig("web").ID == before {
			t.Error("the id of a start came back")
		}
	})
}

// A task's environment and interpolated values reach the driver. The interpolation rules are tested in taskenv. (rules
// RS-073, RS-074, RS-075)
func TestEnvironmentReachesDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", `task "web" {
			driver = "fake"
			meta { my-key = "v" }
			env {
				ID   = "${NOMAD_ALLOC_ID}"
				NODE = "${node.unique.name}"
				KERN = "${attr.kernel.name}"
				NOPE = "${nope.nope}"
				HOST = "of ${HOSTVAR}"
			}
		}`)), func(c *testConfig) {
			c.InheritedHostEnv = taskenv.FilterHostEnv([]string{"HOSTVAR=host", "AWS_SECRET_ACCESS_KEY=x"}, nil, nil)
		})
		h.advance(time.Second)
		env := h.drivers.lastConfig("web").Env
		for key, value := range map[string]string{
			"ID": testAllocID, "NODE": "node-name", "KERN": "linux", "NOPE": "${nope.nope}", // RS-073
			"HOSTVAR": "host", "HOST": "of host", // RS-074
			"NOMAD_META_my_key": "v", "NOMAD_META_MY_KEY": "v", // RS-075
			"NOMAD_TASK_DIR": h.Dir().TaskPaths("web").LocalDir,
		} {
			if env[key] != value {
				t.Errorf("%s: got %q, want %q", key, env[key], value)
			}
		}
		if _, there := env["AWS_SECRET_ACCESS_KEY"]; there {
			t.Error("a denied variable came through")
		}
	})
}

func TestIsolationDecidesAboutDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) {
			c.InheritedHostEnv = map[string]string{"HOSTVAR": "host"}
			c.Drivers.(*fakeDrivers).capabilities.FSIsolation = driver.FSIsolationImage
		})
		h.advance(time.Second)
		env := h.drivers.lastConfig("web").Env
		_, inherited := env["HOSTVAR"]
		wantEqual(t, "env", []any{env["NOMAD_TASK_DIR"], env["NOMAD_SECRETS_DIR"], inherited}, "[/local /secrets false]")
	})
}

// RS-076.
func TestTaskDirectoryExistsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), nil)
		h.advance(time.Second)
		dir := h.Dir().TaskPaths("web")
		for _, d := range []string{dir.SharedAllocDir, dir.LogDir, dir.LocalDir, dir.SecretsDir, dir.PrivateDir} {
			if s, err := os.Stat(d); err != nil || !s.IsDir() {
				t.Errorf("%s: %v", d, err)
			}
		}
		secret := filepath.Join(dir.SecretsDir, "token")
		if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		h.Stop()
		h.wait()
		if _, err := os.Stat(secret); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("secret after the end of the task: %v", err)
		}
		if err := h.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(h.Dir().Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory after destroy: %v", err)
		}
	})
}

func TestEndedAllocationIsDestroyedWithoutItsRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), nil)
		h.advance(time.Second)
		h.Stop()
		h.wait()
		r, err := NewEnded(h.config)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(h.Dir().Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory after destroy: %v", err)
		}
	})
}

// RS-078.
func TestLogSettingsReachCollector(t *testing.T) {
	logs := func(h *harness) string {
		c := h.drivers.lastConfig("web")
		return filepath.Base(c.StdoutPath) + " " + filepath.Base(c.StderrPath)
	}
	t.Run("limits reach the collector", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, job("batch", `task "web" {
				driver = "fake"
				logs {
					max_files     = 3
					max_file_size = 1
				}
				config { run_for = "1s" }
			}`)), nil)
			h.wait()
			started, stopped := h.logs.snapshot()
			task := started["web"]
			wantEqual(t, "task", []any{task.AllocID, task.Name, task.LogDir, task.StdoutLimits, task.StderrLimits},
				[]any{testAllocID, "web", h.Dir().LogDir(), "{3 1048576}", "{3 1048576}"})
			wantEqual(t, "stopped", stopped, "map[web:1]")
			wantEqual(t, "paths", logs(h), ".web.stdout.fifo .web.stderr.fifo")
		})
	})
	t.Run("a task can do without", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, job("batch", `task "web" {
				driver = "fake"
				logs { disabled = true }
				config { run_for = "1s" }
			}`)), nil)
			h.wait()
			wantEqual(t, "collector", fmt.Sprint(h.logs.snapshot()), "map[] map[]")
			wantEqual(t, "paths", logs(h), "null null")
		})
	})
	t.Run("a driver can do without", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, job("batch", oneSecondTaskText)), func(c *testConfig) {
				c.Drivers.(*fakeDrivers).capabilities.DisableLogCollection = true
			})
			h.wait()
			wantEqual(t, "collector", fmt.Sprint(h.logs.snapshot()), "map[] map[]")
			wantEqual(t, "paths", logs(h), ".web.stdout.fifo .web.stderr.fifo")
		})
	})
	t.Run("a collector that does not start is tried again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, job("batch", oneRestartText+oneSecondTaskText)), func(c *testConfig) { c.LogCollector.(*fakeLogs).remainingFailures = 1 })
			h.wait()
			wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task Setup Task hook failed Restarting Started Terminated]")
			wantEqual(t, "message", h.taskState("web").Events[2].DisplayMessage, "logmon: collect logs: no collector")
		})
	})
}

// RS-096.
func TestDispatchPayloadIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("batch", `task "web" {
			driver = "fake"
			dispatch_payload { file = "in/config.json" }
		}`)), func(c *testConfig) { c.Alloc.Job.Payload = []byte("{}") })
		h.advance(time.Second)
		got, err := os.ReadFile(filepath.Join(h.Dir().TaskPaths("web").LocalDir, "in/config.json"))
		if err != nil || string(got) != "{}" {
			t.Errorf("payload %q, %v", got, err)
		}
	})
}

// RS-051.
func TestDeniedUserFailsTask(t *testing.T) {
	for _, c := range []struct{ name, user, driver, want string }{
		{"root is denied to a checked driver", "root", "fake", "failed"},
		{"others are not", "nobody", "fake", "complete"},
		{"a driver that is not checked takes anybody", "root", "other", "complete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := startHarness(t, parseJob(t, job("batch", oneRestartText+fmt.Sprintf(`task "web" {
					driver = "fake"
					user   = %q
					config { run_for = "1s" }
				}`, c.user))), func(cfg *testConfig) { cfg.TaskRules.UserCheckedDrivers = []string{c.driver} })
				h.wait()
				wantEqual(t, "status", h.lastUpdate().ClientStatus, c.want)
				if c.want == "failed" {
					wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task hook failed Not Restarting]")
					wantEqual(t, "message", h.taskState("web").Events[1].DisplayMessage, `validate: running as user "root" is disallowed`)
				}
			})
		})
	}
}

func TestStatsAreSampledOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		h := startHarness(t, parseJob(t, job("batch", `
			task "a" {
				driver = "fake"
				config { run_for = "5s" }
			}
			task "b" {
				driver = "fake"
				config { run_for = "20s" }
			}`)), nil)
		h.advance(500 * time.Millisecond)
		s := h.Stats(ctx, "") // the first Stats call returns a fresh sample
		wantEqual(t, "total at once", []any{len(s.SampleByTask), s.RunningTasksTotal.Memory.RSS, s.NewestSampleTime.Sub(h.startTime)}, "[2 2 500ms]")
		h.advance(3 * time.Second)
		s = h.Stats(ctx, "")
		wantEqual(t, "total", []any{len(s.SampleByTask), s.RunningTasksTotal.Memory.RSS, s.NewestSampleTime.Sub(h.startTime)}, "[2 8 3.5s]")
		wantEqual(t, "one", len(h.Stats(ctx, "a").SampleByTask), 1)
		wantEqual(t, "unknown", len(h.Stats(ctx, "nope").SampleByTask), 0)

		h.advance(4 * time.Second) // a has ended
		s = h.Stats(ctx, "")
		wantEqual(t, "total after a", []any{len(s.SampleByTask), s.RunningTasksTotal.Memory.RSS}, "[2 8]")

		h.drivers.killPlugin()
		h.advance(2500 * time.Millisecond) // the next plugin process continues the samples
		if got := h.Stats(ctx, "b").NewestSampleTime.Sub(h.startTime); got < 8*time.Second {
			t.Errorf("last sample at %v", got)
		}
	})
}

func TestRunningTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("batch", `
			task "a" {
				driver = "fake"
				config { run_for = "5s" }
			}
			task "b" {
				driver = "fake"
				config { run_for = "20s" }
			}`)), nil)
		h.advance(time.Second)
		running := h.AppendRunningTasks(nil)
		names := func(list []RunningTask) (all []string) {
			for _, task := range list {
				all = append(all, task.Name)
			}
			return all
		}
		wantEqual(t, "tasks", names(running), "[a b]")
		alloc := h.Alloc()
		if got := running[0]; got.AllocID != alloc.ID || got.Namespace != alloc.Namespace || got.JobID != alloc.JobID || got.Driver != "fake" || got.StartID == "" || got.RecentSample(time.Minute) != nil {
			t.Errorf("task %+v", got)
		}
		h.advance(6 * time.Second)
		wantEqual(t, "tasks after the end of a", names(h.AppendRunningTasks(running[:0])), "[b]")
	})
}

func TestExec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		h := startHarness(t, parseJob(t, job("batch", `
			task "init" {
				driver = "fake"
				lifecycle { hook = "prestart" }
				config { run_for = "1s" }
			}
			`+endlessTaskText)), nil)
		h.advance(2 * time.Second)
		h.drivers.killPlugin() // the next plugin process recovers the task
		result, err := h.Exec(ctx, "web", []string{"ls", "-la"}, time.Minute)
		if err != nil || string(result.Stdout) != "ls -la" || result.Exit.ExitCode != 3 {
			t.Errorf("exec: %v, %v", result, err)
		}
		var out bytes.Buffer
		exit, err := h.ExecStreaming(ctx, "web", driver.Exec{Command: []string{"ps"}, Stdout: &out})
		if err != nil || out.String() != "ps" || exit.ExitCode != 4 {
			t.Errorf("exec streaming: %v, %v, %q", exit, err, out.String())
		}
		for task, want := range map[string]error{"nope": ErrTaskNotFound, "init": ErrNotRunning} {
			if _, err := h.Exec(ctx, task, []string{"ls"}, time.Minute); !errors.Is(err, want) {
				t.Errorf("exec in %s: %v", task, err)
			}
			if _, err := h.ExecStreaming(ctx, task, driver.Exec{Command: []string{"ls"}}); !errors.Is(err, want) {
				t.Errorf("exec streaming in %s: %v", task, err)
			}
		}
	})
}

func TestFSIsolationIsThatOfTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("batch", endlessTaskText)), func(c *testConfig) {
			c.Drivers.(*fakeDrivers).capabilities.FSIsolation = driver.FSIsolationImage
		})
		h.advance(time.Second)
		for task, want := range map[string]driver.FSIsolation{"web": driver.FSIsolationImage, "nope": driver.FSIsolationNone} {
			if got := h.FSIsolation(task); got != want {
				t.Errorf("%s: got %v, want %v", task, got, want)
			}
		}
	})
}

func TestTaskEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("batch", endlessTaskText)), nil)
		h.advance(2 * time.Second)
		e := driver.TaskEvent{AllocID: testAllocID, TaskName: "web", Timestamp: h.startTime.Add(time.Second),
			Message: "pulling", Annotations: map[string]string{"image": "x"}}
		wantEqual(t, "taken", h.EmitDriverEvent(e), true)
		events := h.taskState("web").Events
		got := events[len(events)-1]
		wantEqual(t, "event", []any{got.Type, got.DisplayMessage, got.DriverMessage, got.Details, h.at(time.Unix(0, got.Time))},
			"[Driver pulling pulling map[image:x] +1s]")
		e.TaskName = "nope"
		wantEqual(t, "unknown task", h.EmitDriverEvent(e), false)
		e.TaskName, e.AllocID = "web", "other"
		wantEqual(t, "other allocation", h.EmitDriverEvent(e), false)
	})
}

func TestUnknownDriverFailsTheAllocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("batch", `task "web" { driver = "nope" }`)), nil)
		h.wait()
		u := h.lastUpdate()
		wantEqual(t, "status", u.ClientStatus+": "+u.ClientDescription,
			`failed: Unable to add allocation due to error: failed creating runner for task "web": driver "nope": no driver "nope"`)
		wantEqual(t, "finished", u.TaskStates["web"].FinishedAt.IsZero(), false)
	})
}

func TestNewRejectsInvalidAlloc(t *testing.T) {
	j := parseJob(t, job("batch", endlessTaskText))
	for name, c := range map[string]struct {
		mangle func(*api.Allocation)
		want   string
	}{
		"an unknown group":         {func(a *api.Allocation) { a.TaskGroup = "x" }, `has no group "x"`},
		"a task without resources": {func(a *api.Allocation) { a.AllocatedResources.Tasks = nil }, "no task resources found on allocation"},
		"an id with a slash":       {func(a *api.Allocation) { a.ID = "../x" }, "slash"},
	} {
		t.Run(name, func(t *testing.T) {
			alloc := newAllocation(j)
			c.mangle(alloc)
			config := testConfig{Config{Alloc: alloc, Logger: nullLogger}, machineConfig{AllocDirRoot: "/nowhere"}}
			_, err := New(config.withMachine())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestUpdateStopsAndRemoves(t *testing.T) {
	two := func(rest string) string {
		return job("service", rest+`
			task "a" { driver = "fake" }
			task "b" {
				driver         = "fake"
				shutdown_delay = "30s"
			}`)
	}
	newer := func(t *testing.T, text string, mangle func(*api.Allocation)) *api.Allocation {
		a := newAllocation(parseJob(t, text))
		a.AllocModifyIndex = 2
		if mangle != nil {
			mangle(a)
		}
		return a
	}
	t.Run("desired to stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, two("")), nil)
			h.advance(time.Second)
			h.Update(newer(t, two(""), func(a *api.Allocation) { a.DesiredStatus = "stop" }))
			h.wait()
			wantEqual(t, "took", time.Since(h.startTime), "31s")
			wantEqual(t, "status", h.lastUpdate().ClientStatus, "complete")
		})
	})
	t.Run("desired to stop without delay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, two("")), nil)
			h.advance(time.Second)
			h.Update(newer(t, two(""), func(a *api.Allocation) {
				a.DesiredStatus = "stop"
				a.DesiredTransition.NoShutdownDelay = new(true)
			}))
			h.wait()
			wantEqual(t, "took", time.Since(h.startTime), "1s")
			wantEqual(t, "b", slices.Contains(h.taskEventTypes("b"), "Skipping shutdown delay"), true)
		})
	})
	t.Run("a missing task is killed and fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, two("")), nil)
			h.advance(time.Second)
			h.Update(newer(t, job("service", `task "b" { driver = "fake" }`), nil))
			h.wait()
			s := h.taskState("a")
			wantEqual(t, "a", []any{s.Failed, s.Events[3].Type, s.Events[3].DisplayMessage}, "[true Killing update missing task]")
			wantEqual(t, "status", h.lastUpdate().ClientStatus, "failed")
		})
	})
}

func TestUpdateInPlace(t *testing.T) {
	web := func(attempts int, kill, signal string) string {
		return job("service", fmt.Sprintf(`
			restart {
				attempts = %d
				delay    = "0s"
				mode     = "fail"
			}
			task "web" {
				driver       = "fake"
				kill_timeout = %q
				kill_signal  = %q
				config {
					run_for    = "10s"
					exit_codes = [1]
				}
			}`, attempts, kill, signal))
	}
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, web(0, "5s", "SIGINT")), nil)
		h.advance(time.Second)
		next := newAllocation(parseJob(t, web(1, "7s", "SIGTERM")))
		next.AllocModifyIndex = 1
		h.Update(next)
		h.advance(12 * time.Second)
		wantEqual(t, "the new policy lets it restart", []any{h.taskState("web").State, h.taskState("web").Restarts}, "[running 1]")
		h.Stop()
		h.wait()
		wantEqual(t, "the new way to stop", h.drivers.recordedCalls("StopTask"), `[+13s StopTask web timeout=7s signal="SIGTERM"]`)
		for _, e := range h.taskState("web").Events {
			if e.Type == api.TaskKilling {
				wantEqual(t, "event", e.DisplayMessage, "Sent interrupt. Waiting 7s before force killing")
			}
		}
	})
}

func TestMaxRunDuration(t *testing.T) {
	limited := func(d string) string { return job("batch", "max_run_duration = \""+d+"\"\n"+endlessTaskText) }
	t.Run("counts from the creation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, limited("10s")), func(c *testConfig) { c.Alloc.CreateTime -= int64(7 * time.Second) })
			h.wait()
			wantEqual(t, "took", time.Since(h.startTime), "3s")
		})
	})
	t.Run("can be changed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, limited("10s")), nil)
			h.advance(5 * time.Second)
			next := newAllocation(parseJob(t, limited("20s")))
			next.AllocModifyIndex = 1
			next.CreateTime = h.startTime.UnixNano()
			h.Update(next)
			h.wait()
			wantEqual(t, "took", time.Since(h.startTime), "20s")
			wantEqual(t, "status", h.lastUpdate().ClientDescription, "allocation exceeded max_run_duration")
		})
	})
	t.Run("also ends a poststop task", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, limited("10s")+""), nil)
			h.advance(time.Second)
			h.Stop()
			h.wait()
			wantEqual(t, "status", h.lastUpdate().ClientDescription, "All tasks have completed")
			h.advance(time.Hour) // no timer is left
		})
	})
	t.Run("is nothing to a service", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := startHarness(t, parseJob(t, job("service", "max_run_duration = \"10s\"\n"+endlessTaskText)), nil)
			h.advance(time.Minute)
			wantEqual(t, "state", h.taskState("web").State, "running")
		})
	})
}

func TestRestartAllFailsTheAllocationWhenATaskDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", `
			task "stuck" {
				driver = "fake"
				config {
					stop_errors = 7
				}
			}
			`+endlessTaskText)), nil)
		h.advance(time.Second)
		err := h.RestartAll(t.Context())
		if err == nil || !strings.Contains(err.Error(), "restart all tasks: stop task: cannot stop") {
			t.Errorf("got %v", err)
		}
		h.wait()
		wantEqual(t, "status", h.lastUpdate().ClientStatus, "failed")
	})
}

// A task that starts while the others are being stopped is stopped too. Otherwise the stop would never end.
func TestRestartAllFindsATaskThatWasStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", `
			task "web" {
				driver       = "fake"
				kill_timeout = "5s"
				config { ignore_signals = true }
			}
			task "slow" {
				driver = "fake"
				config { start_for = "3s" }
			}`)), nil)
		h.advance(time.Second)
		if err := h.RestartAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "took", time.Since(h.startTime), "6s")
		h.advance(time.Minute)
		wantEqual(t, "web", []any{h.taskState("web").State, h.taskState("web").Restarts}, "[running 1]")
		wantEqual(t, "slow", []any{h.taskState("slow").State, h.taskState("slow").Restarts}, "[running 1]")
	})
}

// A task restarted while its start cannot be stored would end for good.
func TestRestartIsRefusedWhileStateCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errDisk := errors.New("read-only file system")
		diskErr, calls := errDisk, &recordingHook{name: "recording"}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) {
			withHooks([]hooks.Hook{recordingAllocHook{calls}}, nil)(c)
			c.CheckStateWrite = func(context.Context) error { return diskErr }
		})
		h.advance(time.Second)
		events, called := len(h.taskState("web").Events), calls.calls()
		orders := map[string]func() error{
			"one task":  func() error { return h.RestartTask(t.Context(), "web") },
			"running":   func() error { return h.RestartRunning(t.Context()) },
			"all tasks": func() error { return h.RestartAll(t.Context()) },
			"of a hook": func() error { return h.RestartAsyncWithReason(t.Context(), "web", "a reason", false) },
		}
		for name, restart := range orders {
			if err := restart(); !errors.Is(err, errDisk) {
				t.Errorf("%s: %v", name, err)
			}
			h.advance(time.Minute)
			wantEqual(t, name, []any{h.taskState("web").State, h.taskState("web").Restarts, len(h.taskState("web").Events)}, fmt.Sprintf("[running 0 %d]", events))
			wantEqual(t, name+": hooks", calls.calls(), called)
		}
		wantEqual(t, "stopped", h.drivers.recordedCalls("StopTask"), "[]")
		diskErr = nil
		wantEqual(t, "restart with a writable disk", h.RestartAll(t.Context()), "<nil>")
		h.advance(time.Minute)
		wantEqual(t, "restarts", []any{h.taskState("web").State, h.taskState("web").Restarts}, "[running 1]")
	})
}

func TestTwoRestartsOfOneProcessAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", `task "web" {
			driver       = "fake"
			kill_timeout = "3s"
			config { ignore_signals = true }
		}`)), nil)
		h.advance(time.Second)
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() { errs <- h.RestartTask(context.Background(), "web") }()
		}
		h.advance(10 * time.Second)
		wantEqual(t, "errors", []error{<-errs, <-errs}, "[<nil> <nil>]")
		wantEqual(t, "restarts", h.taskState("web").Restarts, 1)
		wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task Setup Started Restart Signaled Terminated Restarting Started]")
	})
}

// A check requests a task restart as a failure, so the restart counts for the restart policy.
func TestRestartAsAFailureCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", oneRestartText+endlessTaskText)), nil)
		web, _ := h.tasks.findByName("web")
		for range 2 {
			h.advance(time.Second)
			if err := web.Restart(t.Context(), model.EventRestartSignal("unhealthy"), true); err != nil {
				t.Fatal(err)
			}
		}
		h.wait()
		wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task Setup Started Restart Signaled Terminated Restarting Started Restart Signaled Terminated Not Restarting]")
		wantEqual(t, "status", h.lastUpdate().ClientStatus, "failed")
	})
}

// startDelayedRestart requests a restart for a task with a shutdown delay of 10 seconds, one second after its start. It
// returns a channel for the request's result.
func startDelayedRestart(t *testing.T, ctx context.Context) (*harness, <-chan error) {
	t.Helper()
	h := startHarness(t, parseJob(t, job("service", `task "web" {
		driver         = "fake"
		shutdown_delay = "10s"
	}`)), nil)
	h.advance(time.Second)
	restarted := make(chan error, 1)
	go func() { restarted <- h.RestartTask(ctx, "web") }()
	return h, restarted
}

func TestKillDuringTheShutdownDelayOfARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, restarted := startDelayedRestart(t, context.Background())
		h.advance(5 * time.Second)
		h.Stop()
		h.wait()
		wantEqual(t, "took", time.Since(h.startTime), "16s")
		wantEqual(t, "restart", <-restarted, "<nil>")
		wantEqual(t, "stops", h.drivers.recordedCalls("StopTask"), `[+16s StopTask web timeout=5s signal=""]`)
		wantEqual(t, "restarts", h.taskState("web").Restarts, 0)
	})
}

// A restart with a stored request does not end with its caller.
func TestRestartOutlastsItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		h, restarted := startDelayedRestart(t, ctx)
		h.advance(5 * time.Second)
		gone := errors.New("the caller is gone")
		cancel(gone)
		wantEqual(t, "restart", <-restarted, gone.Error())
		h.advance(time.Minute)
		wantEqual(t, "restarts", h.taskState("web").Restarts, 1)
		wantEqual(t, "stops", h.drivers.recordedCalls("StopTask"), `[+11s StopTask web timeout=5s signal=""]`)
		h.Stop()
		h.wait()
	})
}

// If agent shutdown interrupts a restart's stop, the restart is left to the next agent, and its caller gets an answer.
func TestShutdownAnswersTheCallerOfARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, restarted := startDelayedRestart(t, context.Background())
		h.advance(time.Second)
		h.cancel(ErrShutdown)
		h.wait()
		wantEqual(t, "restart", <-restarted, ErrNotRunning.Error())
		wantEqual(t, "took", time.Since(h.startTime), "2s")
	})
}

// A force kill succeeds if its first way fails and its second way succeeds.
func TestForceKillWithASecondWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", `task "web" {
			driver = "fake"
			config { stop_errors = 1 }
		}`)), nil)
		h.advance(time.Second)
		h.ForceKill()
		h.wait()
		events := h.taskState("web").Events
		wantEqual(t, "last event", events[len(events)-1].DisplayMessage, "Task successfully killed")
	})
}

// unfinishedStartText is a task for which StartTask returns only when it is cancelled, and starts the task nevertheless.
const unfinishedStartText = `task "web" {
	driver       = "fake"
	kill_timeout = "3s"
	config {
		start_for     = "1h"
		starts_anyway = true
	}
}`

// A start that has not returned kill_timeout after a kill is destroyed, because the driver may have started the task.
func TestKillDestroysAnUnfinishedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", unfinishedStartText)), nil)
		h.advance(time.Second)
		h.Stop()
		h.wait()
		wantEqual(t, "took", time.Since(h.startTime), "4s")
		wantEqual(t, "starts", h.drivers.recordedCalls("StartTask"), "[+4s StartTask web]")
		wantEqual(t, "destroyed", h.drivers.recordedCalls("DestroyTask"), "[+4s DestroyTask web]")
	})
}

// If a driver refuses to stop a task for a restart, the next restart calls it again.
func TestFailedRestartCanBeRequestedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", `task "web" {
			driver = "fake"
			config { stop_errors = 5 }
		}`)), nil)
		h.advance(time.Second)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- h.RestartTask(t.Context(), "web") }()
		h.advance(time.Minute)
		go func() { second <- h.RestartTask(t.Context(), "web") }()
		wantEqual(t, "both restarts", []error{<-first, <-second}, "[stop task: cannot stop stop task: cannot stop]")
		wantEqual(t, "state", h.taskState("web").State, "running")
		wantEqual(t, "next restart", h.RestartTask(t.Context(), "web"), "<nil>")
		h.advance(time.Minute)
		wantEqual(t, "restarts", h.taskState("web").Restarts, 1)
		h.ForceKill() // the driver refuses to stop the second process too
		h.wait()
	})
}

func TestStatusNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", noRestartText+`
			task "web" {
				driver = "fake"
				config {
					run_for    = "1s"
					exit_codes = [1]
				}
			}
			task "cleanup" {
				driver = "fake"
				lifecycle { hook = "poststop" }
				config { run_for = "5s" }
			}`)), nil)
		h.wait()
		final := ""
		for _, u := range h.reportedUpdates {
			if final != "" && u.ClientStatus != final {
				t.Errorf("from %s to %s", final, u.ClientStatus)
			}
			if u.Terminal() {
				final = u.ClientStatus
				for name, s := range u.TaskStates {
					if s.FinishedAt.IsZero() {
						t.Errorf("%s: terminal without an end of task %s", u.Time.Sub(h.startTime), name)
					}
				}
			}
		}
		wantEqual(t, "final", final, "failed")
	})
}

// recordingCgroups is a builtinhooks.CgroupManager that records its calls.
type recordingCgroups struct {
	mu    sync.Mutex
	calls []string
	err   error
}

func (c *recordingCgroups) Make(allocID, task string, cores int) (cgroup.Group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "make "+task)
	if c.err != nil {
		return cgroup.Group{}, c.err
	}
	return cgroup.Group{Path: "/cgroup/" + allocID + "." + task, CPUs: strings.Repeat("7", cores)}, nil
}

func (c *recordingCgroups) KillAndRemove(_, task string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "remove "+task)
	return nil
}

// A task gets its reserved cores, and does not start if they cannot be reserved.
func TestReservedCores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := &recordingCgroups{}
		a := startAgent(t, parseJob(t, job("service", "task \"web\" {\n driver = \"fake\"\n resources {\n cores = 2\n }\n}")), func(c *testConfig) {
			c.NewCgroupManager = func(_ string, cores int) builtinhooks.CgroupManager {
				wantEqual(t, "cores", cores, 2)
				return groups
			}
		})
		a.advance(time.Second)
		config := a.drivers.lastConfig("web")
		wantEqual(t, "cpuset", config.Resources.Linux.CpusetCpus, "77")
		wantEqual(t, "environment", config.Env["NOMAD_CPU_CORES"], "77")
		groups.mu.Lock()
		groups.err = errors.New("all cores are reserved")
		groups.mu.Unlock()
		if err := a.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		a.advance(time.Second)
		wantEqual(t, "state", a.taskState("web").State, "pending")
		groups.mu.Lock()
		groups.err = nil
		groups.mu.Unlock()
		a.advance(time.Minute)
		wantEqual(t, "state", a.taskState("web").State, "running")
		a.Stop()
		a.wait()
	})
}

// If a task's driver does not create cgroups, the host creates one at each start. The host removes it after the task has
// ended, but not when the agent ends.
func TestCgroupOfTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := &recordingCgroups{}
		a := startAgent(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) {
			c.NewCgroupManager = func(driver string, _ int) builtinhooks.CgroupManager {
				wantEqual(t, "driver", driver, "fake")
				return groups
			}
		})
		a.advance(time.Second)
		told := func() string { return a.drivers.lastConfig("web").Resources.Linux.CpusetCgroup }
		wantEqual(t, "told", told(), "/cgroup/"+testAllocID+".web")
		a.die()
		a = a.startNextAgent(nil)
		a.advance(time.Second)
		if err := a.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		a.advance(time.Second)
		wantEqual(t, "told by the next agent", told(), "/cgroup/"+testAllocID+".web")
		groups.mu.Lock()
		groups.err = errors.New("read-only file system")
		groups.mu.Unlock()
		if err := a.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		a.advance(time.Second)
		wantEqual(t, "told when none can be made", told(), "")
		wantEqual(t, "task without it", a.taskState("web").State, "running")
		a.Stop()
		a.wait()
		wantEqual(t, "done", groups.calls, "[make web make web make web make web remove web]")
	})
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) {
			c.NewCgroupManager = func(string, int) builtinhooks.CgroupManager { return nil }
		})
		h.advance(time.Second)
		wantEqual(t, "told a driver that makes its own", h.drivers.lastConfig("web").Resources.Linux.CpusetCgroup, "")
	})
}

// slowDiskStore is a store. During each write other goroutines can run.
type slowDiskStore struct{ *fakeStore }

func (d slowDiskStore) PutTaskState(alloc, task string, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	d.fakeStore.PutTaskState(alloc, task, s, h)
	return func() error {
		for range 1000 {
			runtime.Gosched()
		}
		return nil
	}
}

// A task must not start a graceful stop while its kill record is being written.
func TestNoGracefulStopWhileKillIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, jobTextFromParts("service", `
			task "web" {
				driver         = "fake"
				shutdown_delay = "1m"
			}`)), func(c *testConfig) { c.Store = slowDiskStore{newFakeStore()} })
		h.advance(time.Minute)
		h.ForceKill()
		h.wait()
		wantEqual(t, "calls", h.drivers.recordedCalls("StopTask"), `[+1m0s StopTask web timeout=0s signal="SIGKILL"]`)
		wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task Setup Started Killing Terminated Killed]")
	})
}
