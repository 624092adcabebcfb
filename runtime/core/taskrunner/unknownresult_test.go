package taskrunner

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// After a result without a row for its step, a task ends with an event, and leaves no process. This holds if the later steps
// return such results too, except for tasksteps.AbandonTask, which finds what must be ended.
func TestUnknownResultEndsTheTask(t *testing.T) {
	handle := &driver.Handle{Config: &driver.TaskConfig{ID: "alloc/web/1", Name: taskName}}
	newTask := func() *RestoredTask { return nil }
	runningTask := func() *RestoredTask {
		return &RestoredTask{
			Fields:    record.Fields{StartID: handle.Config.ID, Handle: handle},
			TaskState: &api.TaskState{State: model.TaskRunning},
		}
	}
	interruptedStart := func() *RestoredTask {
		return &RestoredTask{Fields: record.Fields{StartID: handle.Config.ID}, TaskState: &api.TaskState{State: model.TaskPending}}
	}
	for _, c := range []struct {
		name     string
		restored func() *RestoredTask
		startErr error
		killed   bool // the task is killed after a minute, before the steps
		steps    []tasksteps.Step
	}{
		{"new task", newTask, nil, false, []tasksteps.Step{
			tasksteps.AwaitStartGate, tasksteps.AwaitDriver, tasksteps.CallPrestartHooks, tasksteps.StoreStartID, tasksteps.AwaitPluginTasks,
			tasksteps.StartTask, tasksteps.StoreHandle, tasksteps.CallPoststartHooks, tasksteps.AwaitExit,
		}},
		{"killed task", newTask, nil, true, []tasksteps.Step{
			tasksteps.CallPreKillingHooks, tasksteps.AwaitShutdownDelay, tasksteps.StopTask, tasksteps.AwaitExitAfterStop, tasksteps.RecordExit,
			tasksteps.DestroyProcess, tasksteps.CallExitedHooks, tasksteps.DecideRestart, tasksteps.MarkDead, tasksteps.AwaitRerun,
			tasksteps.DestroyRemaining, tasksteps.CallStopHooks,
		}},
		{"the plugin dies during the start", newTask, driver.ErrPluginDown, false, []tasksteps.Step{tasksteps.QueryStart}},
		{"running task of an earlier agent", runningTask, nil, false, []tasksteps.Step{tasksteps.RecoverTask, tasksteps.TakeOverProcess}},
		{"interrupted start of an earlier agent", interruptedStart, nil, false, []tasksteps.Step{tasksteps.RecoverTask, tasksteps.QueryEarlierStart}},
	} {
		for _, wrongStep := range c.steps {
			for _, all := range []bool{false, true} {
				name := c.name + "/" + wrongStep.String()
				if all {
					name += " and all later steps"
				}
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld()
						w.driver.startErr, w.driver.inspectErr = c.startErr, driver.Recoverable(errors.New("no answer"))
						restored := c.restored()
						if restored != nil {
							w.driver.addProcess(handle.Config.ID)
						}
						r := w.newAgent(restored).Runner
						if restored != nil {
							r.RecoverTaskOfEarlierAgent(t.Context(), RecoveryFacts{DriverKnowsInterruptedStarts: true})
						} else if err := r.FetchDriverDescription(t.Context(), false); err != nil {
							t.Fatal(err)
						}
						kill := time.AfterFunc(time.Minute, func() { r.Kill(model.EventKilling(time.Second)) })
						wrong := 0
						run, end := newTaskRun(t.Context(), t.Context(), r)
						for step := r.firstStep; step != tasksteps.None; {
							isWrong := step == wrongStep && wrong == 0 || wrong > 0 && all && step != tasksteps.AbandonTask
							var result tasksteps.Result
							if !isWrong || step != tasksteps.AwaitExit { // the process does not exit
								result = run.execute(step)
							}
							if isWrong {
								wrong++
								result = tasksteps.NoResult
							}
							step = run.recordResult(step, result)
						}
						end()
						if wrong == 0 || kill.Stop() == c.killed {
							t.Fatalf("the task has not executed the step, or has not ended because of it: %v", r.Transitions())
						}
						time.Sleep(time.Minute) // the task's goroutines end
						if left := w.driver.ids(); len(left) > 0 {
							t.Errorf("the driver still has %v", left)
						}
						s := r.State()
						var events strings.Builder
						for _, e := range s.Events {
							fmt.Fprintf(&events, "%s: %s\n", e.Type, e.DisplayMessage)
						}
						if s.State != model.TaskDead || s.Failed == c.killed {
							t.Errorf("the task is %s, failed %v", s.State, s.Failed)
						}
						if !all && !strings.Contains(events.String(), "Killing: The task ends because of an error in nomad-lite, please report it: the step \""+wrongStep.String()+"\" cannot have the result") {
							t.Errorf("no event of the error:\n%s", &events) // with further errors, the task no longer has it
						}
						if strings.Contains(events.String(), exitUnknownMessage) {
							t.Errorf("the exit status is lost:\n%s", &events)
						}
					})
				})
			}
		}
	}
}
