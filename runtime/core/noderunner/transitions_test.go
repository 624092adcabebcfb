package noderunner

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps/transitioncheck"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// newTransitionsOfTasks returns, for a number of tasks, a task runner's longest transition lists.
func newTransitionsOfTasks(taskCount int) map[string][]tasksteps.Transition {
	byTask := make(map[string][]tasksteps.Transition)
	for task := range taskCount {
		var list []tasksteps.Transition
		for i := range 48 {
			list = append(list, tasksteps.Transition{Time: time.Unix(int64(i), 1), Step: tasksteps.StartTask, Result: tasksteps.Killed, Next: tasksteps.MarkDead})
		}
		byTask[fmt.Sprint("task", task)] = list
	}
	return byTask
}

func TestEndedTransitionsDropTheFirst(t *testing.T) {
	var ended endedTransitions
	ids := func() (ids []string) {
		for _, a := range ended.allocs {
			ids = append(ids, a.allocID)
		}
		return ids
	}
	steps := []struct {
		id    string
		tasks int
		want  []string
	}{
		{"not run", 0, nil},
		{"a", 1, []string{"a"}},
		{"b", maxEndedTasks - 2, []string{"a", "b"}},
		{"c", 1, []string{"a", "b", "c"}},
		{"d", 1, []string{"b", "c", "d"}},
		{"e", 2, []string{"c", "d", "e"}},
		{"large", maxEndedTasks + 1, []string{"large"}},
		{"f", 1, []string{"f"}},
		{"g", 1, []string{"f", "g"}},
	}
	for _, s := range steps {
		ended.add(packAllocTransitions(s.id, newTransitionsOfTasks(s.tasks)))
		if got := ids(); !slices.Equal(got, s.want) {
			t.Errorf("after %q: %q, want %q", s.id, got, s.want)
		}
	}
	ended.remove("unknown")
	ended.remove("f")
	ended.remove("g")
	if len(ended.allocs) != 0 || ended.taskCount != 0 {
		t.Errorf("after the removal of all: %q with %d tasks", ids(), ended.taskCount)
	}
	want := newTransitionsOfTasks(2)
	if got := packAllocTransitions("a", want).unpack(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The endedTransitions comment has these sizes.
func TestEndedTransitionsMemoryLimit(t *testing.T) {
	var ended endedTransitions
	one := newTransitionsOfTasks(1)
	for range 3 * maxEndedTasks {
		ended.add(packAllocTransitions("a", one))
	}
	bytes := cap(ended.allocs) * int(unsafe.Sizeof(endedAllocTransitions{}))
	for _, a := range ended.allocs {
		for _, task := range a.tasks {
			bytes += int(unsafe.Sizeof(task)) + cap(task.transitions)*int(unsafe.Sizeof(tasksteps.PackedTransition{}))
		}
	}
	if bytes > 220_000 {
		t.Errorf("%d allocations have %d bytes, want at most 220000", len(ended.allocs), bytes)
	}
	t.Logf("%d allocations have %d bytes", len(ended.allocs), bytes)
}

func TestTransitionsOfEndedAllocsAreKeptUntilTheirRemoval(t *testing.T) {
	gc := GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}
	r, source, _ := startRunner(t, gc, newAssignment("collected", 1), newAssignment("removed", 1), endedAssignment("of an earlier agent", time.Hour))
	for _, id := range []string{"collected", "removed"} {
		eventually(t, id+" has ended", func() bool { _, yes := source.endError(id); return yes })
		list := r.TransitionsByTask(id)["t"]
		if err := transitioncheck.Check(list); err != nil || len(list) == 0 || list[len(list)-1].Next != tasksteps.None {
			t.Errorf("%s: %v, %v", id, list, err)
		}
	}
	if got := r.TransitionsByTask("of an earlier agent"); got != nil {
		t.Errorf("transitions of an earlier agent: %v", got)
	}
	if err := r.RemoveDirOfEndedAlloc(t.Context(), "collected"); err != nil {
		t.Fatal(err)
	}
	if got := r.TransitionsByTask("collected"); got != nil {
		t.Errorf("transitions of a collected allocation: %v", got)
	}
	source.setAssignments(newAssignment("collected", 1))
	eventually(t, "the allocation is removed", func() bool { return len(r.allocIDs()) == 1 })
	if got := r.TransitionsByTask("removed"); got != nil {
		t.Errorf("transitions of a removed allocation: %v", got)
	}
}

func TestTransitionsOfAnAllocThatHasNotEnded(t *testing.T) {
	d := &vanishingDriver{available: make(chan struct{})}
	a := newAssignment("a", 1)
	model.Canonicalize(a.Alloc.Job)
	r, _, _ := startRunnerWith(t, allocrunner.Config{Drivers: driversFunc(d.lookUp)}, discardLogs{}, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, a)
	t.Cleanup(func() { close(d.available) }) // before startRunnerWith's cleanup, which waits for the driver
	eventually(t, "the task waits for its driver", func() bool { runner := r.AllocRunner("a"); return runner != nil && onlyHooksCanRun(runner) })
	if list := r.TransitionsByTask("a")["t"]; len(list) == 0 || list[len(list)-1].Next == tasksteps.None {
		t.Errorf("transitions: %v", list)
	}
}
