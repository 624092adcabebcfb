package allocrunner

import (
	"testing"
	"testing/synctest"
	"time"
)

const exhaustedStartText = `
	task "web" {
		driver = "fake"
		config {
			start_errors = ["fork: too many open files", "fork: too many open files", "fork: too many open files", ""]
			exhausted    = true
			run_for      = "5s"
		}
	}`

// If the driver finds no descriptor or process, the start does not count as failed, whatever the restart policy is.
func TestStartWaitsForResourcesOfTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("batch", "restart { attempts = 0 }", exhaustedStartText)), nil)
		a.wait()
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Driver Started Terminated]")
		wantEqual(t, "event", eventMessages(a, "web"), `[driver "fake" has no free file descriptors or processes, the start is repeated: fork: too many open files]`)
		wantEqual(t, "starts", a.startCount("web"), "4")
		wantEqual(t, "restarts", a.taskState("web").Restarts, "0")
	})
}

// A kill ends the wait.
func TestStopDuringWaitForResourcesOfTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", `
			task "web" {
				driver = "fake"
				config {
					start_errors = ["fork: too many open files"]
					exhausted    = true
				}
			}`)), nil)
		a.advance(time.Minute)
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Driver]")
		begin := time.Now()
		a.Stop()
		a.wait()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the task ends after %v", took)
		}
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
	})
}
