package taskview

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal/terminaltest"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestNewEvents(t *testing.T) {
	events := func(list ...string) (events []*api.TaskEvent) {
		for _, text := range list {
			events = append(events, &api.TaskEvent{Time: int64(text[0]), DisplayMessage: text[1:]})
		}
		return events
	}
	for _, c := range []struct {
		name   string
		events []*api.TaskEvent
		shown  []*api.TaskEvent
		want   []string
	}{
		{"the first events", events("1a", "2b"), nil, []string{"a", "b"}},
		{"nothing new", events("1a", "2b"), events("2b"), nil},
		{"one that is as old as the last", events("1a", "2b", "2c"), events("2b"), []string{"c"}},
		{"one from before the clock was set back", events("2a", "1b"), events("2a"), []string{"b"}},
		{"the last one has gone", events("3c", "4d"), events("2b"), []string{"c", "d"}},
		{"one that was replaced", events("1a", "4d"), events("1a", "2b", "3c"), []string{"d"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, e := range findNewEvents(c.events, c.shown) {
				got = append(got, e.DisplayMessage)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// The live line of a task that does not run states the reason, not the last event.
func TestTaskStatusLineShowsReason(t *testing.T) {
	tty := terminaltest.NewFakeScrollingTerminal(t, 80, 10)
	v := newTestView(t, tty, "server")
	defer v.Close()
	v.updateTask("server", model.TaskPending,
		&api.TaskEvent{Type: api.TaskTerminated, ExitCode: 3}, &api.TaskEvent{Type: api.TaskRestarting, StartDelay: int64(time.Hour)})
	if live := " server  main       pending  exit code 3, restarts at "; !strings.Contains(tty.String(), live) {
		t.Errorf("the terminal shows\n%s\nwithout %q", tty, live)
	}
}

// The live lines have the order of the job, also of allocations that are created later.
func TestTaskRowsInJobOrder(t *testing.T) {
	tty := terminaltest.NewFakeScrollingTerminal(t, 80, 24)
	v := newTestView(t, tty)
	defer v.Close()
	group := func(name string, tasks ...string) *api.TaskGroup {
		g := &api.TaskGroup{Name: &name}
		for _, task := range tasks {
			g.Tasks = append(g.Tasks, &api.Task{Name: task})
		}
		return g
	}
	job := &api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{group("web", "server", "log"), group("db", "main")}}
	alloc := func(group string, number, index int) *api.Allocation {
		name := fmt.Sprintf("j.%s[%d]", group, number)
		return &api.Allocation{ID: name, JobID: "j", Name: name, TaskGroup: group, Job: job, CreateIndex: uint64(index)}
	}
	logDir := func(string) string { return "" }
	rows := JobPlacementInView{JobPosition: 1, AllocCount: 4}
	added := v.AddTasks([]*api.Allocation{alloc("db", 0, 1), alloc("web", 10, 1), alloc("web", 9, 1)}, rows, logDir)
	v.AddTasks([]*api.Allocation{alloc("web", 9, 2), alloc("web", 0, 2)}, rows, logDir)
	v.AddTasks([]*api.Allocation{alloc("db", 0, 3)}, JobPlacementInView{LabelPrefix: "k/", AllocCount: 1}, logDir)
	labels := func(tasks []*Task) (labels []string) {
		for _, task := range tasks {
			labels = append(labels, fmt.Sprint(task.Label, " ", task.Alloc.CreateIndex))
		}
		return labels
	}
	if got, want := labels(added), []string{"web[9].server 1", "web[9].log 1", "web[10].server 1", "web[10].log 1", "db[0].main 1"}; !slices.Equal(got, want) {
		t.Errorf("added %q, want %q", got, want)
	}
	want := []string{"k/main 3", "web[0].server 2", "web[0].log 2", "web[9].server 1", "web[9].log 1", "web[9].server 2", "web[9].log 2", "web[10].server 1", "web[10].log 1", "db[0].main 1"}
	if got := labels(v.tasks); !slices.Equal(got, want) {
		t.Errorf("the rows are %q, want %q", got, want)
	}
}

// The live lines of an allocation that was replaced disappear when its tasks have ended.
func TestReplacedAllocationsHaveNoRows(t *testing.T) {
	tty := terminaltest.NewFakeScrollingTerminal(t, 80, 24)
	v := newTestView(t, tty, "server")
	defer v.Close()
	old := v.tasks[0].Alloc
	replacement := *old
	replacement.ID, replacement.CreateIndex = "b", 9
	v.AddTasks([]*api.Allocation{&replacement}, JobPlacementInView{AllocCount: 1}, func(string) string { return "" })
	v.updateTask("server", model.TaskRunning)
	if n := strings.Count(tty.String(), "server "); n != 2 {
		t.Errorf("%d rows while the replaced task runs, want 2:\n%s", n, tty)
	}
	v.updateTask("server", model.TaskDead)
	if n := strings.Count(tty.String(), "server "); n != 1 || !strings.Contains(tty.String(), "pending") {
		t.Errorf("%d rows, want that of the new task:\n%s", n, tty)
	}
}

// Lines of a task are printed while the tasks of another job are added, which can widen the labels.
func TestOutputWhileTasksAreAdded(t *testing.T) {
	t.Parallel()
	v := New(&cli.Streams{Out: io.Discard, Err: io.Discard}, nil)
	defer v.Close()
	alloc := &api.Allocation{ID: "a", Name: "j.g[0]", JobID: "j", TaskGroup: "g", Job: &api.Job{
		ID: new("j"), TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t"}}}},
	}}
	logDir := func(string) string { return "" }
	task := v.AddTasks([]*api.Allocation{alloc}, JobPlacementInView{AllocCount: 1}, logDir)[0]
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for range 100 {
			v.PrintTaskOutput(task, false, []byte("line\n"))
		}
	}()
	for n := range 30 {
		v.AddTasks([]*api.Allocation{alloc}, JobPlacementInView{AllocCount: 1, LabelPrefix: strings.Repeat("x", n)}, logDir)
	}
	<-printed
}
