package taskrunner

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// life is a task's behaviour, and the request to it.
type life struct {
	name       string
	policy     restart.Policy
	runFor     time.Duration
	exitCodes  []int
	request    func(*agent) // after five seconds, also under a later agent; nil for none
	wantStarts int
	wantFailed bool
}

var lives = []life{
	{name: "restart without a delay", policy: restart.Policy{Attempts: 1, Interval: time.Hour, Mode: restart.ModeFail}, runFor: 10 * time.Second, wantStarts: 2, wantFailed: true},
	{name: "restart with a delay", policy: restart.Policy{Attempts: 1, Interval: time.Hour, Delay: 20 * time.Second, Mode: restart.ModeFail}, runFor: 10 * time.Second, wantStarts: 2, wantFailed: true},
	{name: "success", runFor: 10 * time.Second, exitCodes: []int{0}, wantStarts: 1},
	{name: "kill", policy: restart.Policy{Attempts: 1, Interval: time.Hour, Mode: restart.ModeFail}, request: func(a *agent) { a.Kill(model.EventKilling(time.Second)) }, wantStarts: 1},
}

// An agent dies in place of each of its puts. The next one neither starts a process beside another one nor repeats a run, the
// task ends as without the death, and leaves nothing.
func TestDeathAtEachPut(t *testing.T) {
	for _, l := range lives {
		for _, atOnce := range []bool{true, false} {
			puts := 0
			synctest.Test(t, func(t *testing.T) { puts = l.live(t, 0, atOnce) })
			for n := 1; n <= puts; n++ {
				t.Run(fmt.Sprintf("%s/put %d, all puts at once %v", l.name, n, atOnce), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { l.live(t, n, atOnce) })
				})
			}
		}
	}
}

// live lets the task live and returns the number of puts. If crashAt is not 0, the agent dies in place of that put.
func (l life) live(t *testing.T, crashAt int, atOnce bool) (puts int) {
	w := newWorld()
	w.task.RestartPolicy = l.policy
	w.driver.runFor, w.driver.exitCodes = l.runFor, l.exitCodes
	w.disk.crashAt, w.disk.writesAtOnce = crashAt, atOnce
	requested := false
	for deaths := 0; ; deaths++ {
		ctx, die := context.WithCancel(t.Context())
		w.disk.onCrash = die
		a := w.run(ctx, w.disk.restore())
		if l.request != nil {
			if !requested {
				time.Sleep(5 * time.Second)
			}
			requested = true
			l.request(a)
		}
		for !wait.IsClosed(a.Done()) {
			if a.State().State == model.TaskDead {
				a.Kill(nil) // as its allocation does at its end
			}
			time.Sleep(time.Second)
		}
		die()
		if !w.disk.isCrashed() {
			if state := a.State(); state.State != model.TaskDead || state.Failed != l.wantFailed {
				t.Errorf("the task is %s, failed %v", state.State, state.Failed)
			}
			break
		}
		if deaths > 0 {
			t.Fatal("the agent has died twice")
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
	if w.driver.starts != l.wantStarts || w.driver.most > 1 || len(w.driver.processes) > 0 {
		t.Errorf("%d starts, %d processes at the same time, the driver has %v at the end; want %d starts: %s", w.driver.starts, w.driver.most, w.driver.ids(), l.wantStarts, w.driver.takeCalls())
	}
	return len(w.disk.puts)
}
