package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// scene is a task's life with one agent.
type scene struct {
	name     string
	prepare  func(*world) // may be nil
	restored *RestoredTask
	after    time.Duration                // when act is called
	act      func(*scene, *world, *agent) // may be nil
	answers  []string                     // what the runner's callers got
}

func (s *scene) answer(format string, args ...any) {
	s.answers = append(s.answers, fmt.Sprintf(format, args...))
}

func scenes() []*scene {
	kill := func(_ *scene, _ *world, a *agent) { a.Kill(model.EventKilling(time.Second)) }
	shutdown := func(s *scene, _ *world, a *agent) {
		a.shutdown()
		<-a.Done()
		s.answer("the driver may have to destroy a start: %v", a.IsDestroyPendingAfterRun())
	}
	restartTask := func(s *scene, _ *world, a *agent) {
		s.answer("restart: %v", a.Restart(context.Background(), model.EventRestartSignal("user"), false))
	}
	exits := func(code int) func(*world) {
		return func(w *world) { w.driver.runFor, w.driver.exitCodes = 10*time.Second, []int{code} }
	}
	const attempt = 5 * time.Second
	return []*scene{
		{name: "the disk refuses the id of a start for 20 seconds", prepare: func(w *world) {
			w.disk.refuses = func(put) error { return w.disk.fullFor(20 * time.Second) }
		}},
		{name: "the disk refuses the exit for 20 seconds", prepare: func(w *world) {
			exits(1)(w)
			w.disk.refuses = func(p put) error {
				if p.fields == nil || p.fields.UnhandledExit == nil {
					return nil
				}
				return w.disk.fullFor(30 * time.Second)
			}
		}},
		{name: "the plugin dies during each start", prepare: func(w *world) { w.driver.startDies = 100 }},
		{name: "the plugin dies during a start, and the driver does not know what has become of it", prepare: func(w *world) {
			w.driver.startDies, w.driver.status = 1, &driver.TaskStatus{}
		}},
		{name: "each start fails", prepare: func(w *world) { w.driver.startErr = driver.Recoverable(errors.New("no image")) }},
		{name: "a start fails for good", prepare: func(w *world) { w.driver.startErr = errors.New("no such program") }},
		{name: "a hook fails", prepare: func(w *world) { w.hook.failed = true }},
		{name: "a hook is done after its first call", prepare: func(w *world) {
			exits(1)(w)
			w.hook.done = true
		}},
		{name: "a kill during StartTask", prepare: func(w *world) { w.driver.startTakes = time.Minute }, after: attempt, act: kill},
		{name: "a shutdown during StartTask", prepare: func(w *world) { w.driver.startTakes = time.Minute }, after: attempt, act: shutdown},
		{name: "a shutdown while the task runs", after: attempt, act: shutdown},
		{name: "the tasks that start first take 20 seconds", prepare: func(w *world) { w.gate.opens = time.Now().Add(20 * time.Second) }},
		{name: "a kill during the restart delay", prepare: func(w *world) {
			exits(1)(w)
			w.task.RestartPolicy.Delay = time.Minute
		}, after: 15 * time.Second, act: kill},
		{name: "a shutdown delay", prepare: func(w *world) { w.task.ShutdownDelay = 10 * time.Second }, after: attempt, act: kill},
		{name: "a kill during the shutdown delay of a restart", prepare: func(w *world) { w.task.ShutdownDelay = 10 * time.Second }, after: attempt, act: func(s *scene, w *world, a *agent) {
			var restarted sync.WaitGroup
			restarted.Go(func() { restartTask(s, w, a) })
			time.Sleep(5 * time.Second)
			kill(s, w, a)
			restarted.Wait()
		}},
		{name: "a requested restart", after: attempt, act: restartTask},
		{name: "the driver refuses the stop of a restart", prepare: func(w *world) { w.driver.stopErr = errors.New("cannot stop") }, after: attempt, act: func(s *scene, w *world, a *agent) {
			restartTask(s, w, a)
			w.driver.setErrors(nil)
			time.Sleep(5 * time.Second)
			restartTask(s, w, a)
		}},
		{name: "the driver refuses the stop of a kill", prepare: func(w *world) { w.driver.stopErr = errors.New("cannot stop") }, after: attempt, act: kill},
		{name: "a process does not end", prepare: func(w *world) { w.driver.ignoresStop = true }, after: attempt, act: kill},
		{name: "an outage of the driver during a stop", after: attempt, act: func(s *scene, w *world, a *agent) {
			w.driver.setOutage(30 * time.Second)
			kill(s, w, a)
		}},
		{name: "a rerun of a task that has succeeded", prepare: exits(0), after: 20 * time.Second, act: func(s *scene, _ *world, a *agent) {
			s.answer("runs again: %v", a.RequestRerunIfSucceeded(model.EventRestartSignal("user")))
		}},
		{name: "a rerun that was requested under an earlier agent", restored: &RestoredTask{
			Fields:    record.Fields{RestartRequest: &record.RestartRequest{Reason: "user"}},
			TaskState: &api.TaskState{State: model.TaskDead, FinishedAt: time.Now()},
		}},
	}
}

// TestScenes shows what the runner does with a task: the driver and hook calls, the events, what callers get, and the last run's
// end, until the task is killed after an hour. Times are rounded to ten seconds, because the restart policy's delays are random.
func TestScenes(t *testing.T) {
	const goldenFile = "testdata/scenes.txt"
	text := &strings.Builder{}
	for i, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { scenes()[i].play(t, text) }) // its times are from the bubble
		})
	}
	number := 0
	numbers := map[string]string{}
	golden.Check(t, goldenFile, regexp.MustCompile(`alloc/web/\w+`).ReplaceAllStringFunc(text.String(), func(id string) string {
		if numbers[id] == "" {
			number++
			numbers[id] = strconv.Itoa(number)
		}
		return numbers[id]
	}))
}

func (s *scene) play(t *testing.T, text *strings.Builder) {
	w := newWorld()
	begin := time.Now()
	w.task.RestartPolicy = restart.Policy{Attempts: 1, Interval: 24 * time.Hour, Delay: 5 * time.Second, Mode: restart.ModeFail}
	if s.prepare != nil {
		s.prepare(w)
	}
	a := w.run(t.Context(), s.restored)
	time.Sleep(s.after)
	if s.act != nil {
		s.act(s, w, a)
	}
	time.Sleep(time.Hour - time.Since(begin))
	if !wait.IsClosed(a.Done()) {
		a.Kill(nil) // as the allocation does at its end
		time.Sleep(time.Hour)
	}
	if !wait.IsClosed(a.Done()) {
		s.answer("the task does not end before a force kill")
		a.ForceKill(nil)
		<-a.Done()
	}
	state := a.State()
	fmt.Fprintf(text, "%s\ndriver:   %s\nhook:     %s\nevents:  ", s.name, w.driver.takeCallsWithTimes(), w.hook.takeCallsWithTimes())
	for _, e := range state.Events {
		message := e.DisplayMessage
		if e.Type == api.TaskRestarting {
			message = "" // the delay is random
		}
		fmt.Fprintf(text, " %v %s (%s),", time.Unix(0, e.Time).Sub(begin).Round(10*time.Second), e.Type, message)
	}
	fmt.Fprintf(text, "\nend:      %s, failed %v", state.State, state.Failed)
	if end := a.records.fields().LastEnd; end != nil {
		fmt.Fprintf(text, ", start failed %v, code %d, error %q", end.StartFailed, end.ExitCode, end.Error)
	}
	fmt.Fprintf(text, "\nanswers:  %s\n\n", strings.Join(s.answers, ", "))
	if ids := w.driver.ids(); w.driver.most > 1 || len(ids) > 0 && state.State == model.TaskDead {
		t.Errorf("the driver has %v at the end; %d processes ran at the same time", ids, w.driver.most)
	}
}
