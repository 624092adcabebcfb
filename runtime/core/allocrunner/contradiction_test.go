package allocrunner

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// A process that runs although its start failed is destroyed before the next start.
func TestFailedStartThatRunsIsDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startAgent(t, parseJob(t, job("service", oneRestartText+`task "web" {
			driver = "fake"
			config {
				start_errors  = ["unreadable response", ""]
				starts_anyway = true
				recoverable   = true
			}
		}
		`)), func(c *testConfig) {
			c.Drivers.(*fakeDrivers).checkStart = func(_ string, alive []string) string {
				if len(alive) > 0 {
					return "a start beside another one"
				}
				return ""
			}
		})
		h.advance(10 * time.Minute)
		wantEqual(t, "starts", h.startCount("web"), "2")
		wantEqual(t, "alive", len(h.drivers.aliveTasks()), "1")
		wantEqual(t, "destroyed", countDestroyCalls(h, "web"), "1")
		wantEqual(t, "wrong starts", h.drivers.violations, "[]")
		h.Stop()
		h.wait()
	})
}

// A stop ends although the driver never reports the exit.
func TestStopWithoutReportedExitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startAgent(t, parseJob(t, job("service", `task "web" {
			driver       = "fake"
			kill_timeout = "7s"
			config {
				unreported = true
			}
		}
		`)), nil)
		h.advance(time.Second)
		h.Stop()
		h.advance(16 * time.Second)
		wantEqual(t, "destroyed before the timeout", h.drivers.recordedCalls("DestroyTask"), "[]")
		h.wait()
		wantEqual(t, "destroyed", h.drivers.recordedCalls("DestroyTask"), "[+18s DestroyTask web]")
		wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task Setup Started Killing Driver Killed]")
		wantEqual(t, "message", eventMessages(h, "web")[0], "exit status unknown: the driver has stopped and destroyed the task, and WaitTask does not return")
		wantEqual(t, "status", h.lastUpdate().ClientStatus, "complete")
	})
}

// If the driver has lost a process, the agent ends it before the next start.
func TestLostProcessIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startAgent(t, parseJob(t, job("service", oneRestartText+`task "web" {
			driver = "fake"
			config {
				unrecovered = true
			}
		}
		`)), func(c *testConfig) {
			drivers := c.Drivers.(*fakeDrivers)
			c.EndTaskWithoutDriver = func(_ context.Context, req taskdriver.EndTaskRequest) (taskdriver.EndTaskResult, error) {
				drivers.recordCall("EndTask %s builtin=%v", req.Task, req.TasksAreHostProcesses)
				return taskdriver.EndTaskResult{FoundProcesses: true}, nil
			}
		})
		h.advance(time.Second)
		h.drivers.killPlugin()
		h.advance(10 * time.Minute)
		wantEqual(t, "ended", h.drivers.recordedCalls("EndTask"), "[+1s EndTask web builtin=false]")
		wantEqual(t, "starts", h.startCount("web"), "2")
		h.Stop()
		h.wait()
	})
}
