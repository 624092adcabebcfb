package lifecycle

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// Each transcript contains allocation histories: a line per event, and indented below it the phase
// and the tasks that may start. Tasks keep their state until an event names them again.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, file, replayTranscript(t, string(want)))
		})
	}
}

// replayTranscript runs a transcript's events, and returns the transcript with the actual outcomes.
func replayTranscript(t *testing.T, transcript string) string {
	var (
		out    strings.Builder
		tasks  []Task
		states map[string]State
		c      *Coordinator
	)
	for line := range strings.Lines(transcript) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "\t") {
			continue // an outcome
		}
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		event, args, _ := strings.Cut(line, " ")
		if event == "tasks" {
			tasks, states = nil, make(map[string]State)
		}
		for _, arg := range strings.Fields(args) {
			name, value, _ := strings.Cut(arg, "=")
			if event == "tasks" {
				hook, sidecar := strings.CutSuffix(value, "-sidecar")
				tasks = append(tasks, Task{Name: name, Stage: StageOf(strings.TrimPrefix(hook, "main"), sidecar)})
				continue
			}
			if !slices.ContainsFunc(tasks, func(t Task) bool { return t.Name == name }) {
				t.Fatalf("%q names no task", line)
			}
			state, failed := strings.CutPrefix(value, "failed")
			if failed {
				state = "dead"
			}
			states[name] = StateOf(state, failed)
		}
		switch event {
		case "tasks":
			c = NewCoordinator(hclog.NewNullLogger(), tasks)
		case "observe":
			c.ObserveTaskStates(maps.Clone(states))
		case "restore":
			c.Restore(maps.Clone(states))
		case "restart":
			c.ReturnToInit()
		default:
			t.Fatalf("unknown event %q", line)
		}
		fmt.Fprintf(&out, "\t%v:%s\n", c.Phase(), tasksWithOpenGates(c, tasks))
	}
	return out.String()
}

func tasksWithOpenGates(c *Coordinator, tasks []Task) string {
	var openTaskNames string
	for _, t := range tasks {
		if c.Gate(t.Stage).openedChanOrNilIfOpen() == nil {
			openTaskNames += " " + t.Name
		}
	}
	return openTaskNames
}

func TestMissingStateCountsAsPending(t *testing.T) {
	c := NewCoordinator(hclog.NewNullLogger(), []Task{{Name: "web", Stage: MainTask}, {Name: "log", Stage: MainTask}})
	c.ObserveTaskStates(map[string]State{"stranger": Running})
	if got := c.Phase(); got != PhaseMain {
		t.Errorf("phase with no states = %v, want %v", got, PhaseMain)
	}
	c.ObserveTaskStates(map[string]State{"web": Running})
	if got := c.Phase(); got != PhaseMain {
		t.Errorf("phase with one task unknown = %v, want %v", got, PhaseMain)
	}
}

func TestNoGateForAStageWithoutTasks(t *testing.T) {
	c := NewCoordinator(hclog.NewNullLogger(), []Task{{Name: "web", Stage: MainTask}})
	if c.Gate(PoststopTask) != nil {
		t.Error("there is a gate for poststop tasks, and no such task")
	}
}

// In whatever order concurrent snapshots take effect, the gates match the phase.
func TestConcurrentObservers(t *testing.T) {
	tasks := []Task{{Name: "prep", Stage: PrestartEphemeral}, {Name: "web", Stage: MainTask}, {Name: "tidy", Stage: PoststopTask}}
	c := NewCoordinator(hclog.NewNullLogger(), tasks)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 100 {
				c.ObserveTaskStates(nil)
				c.ObserveTaskStates(map[string]State{"prep": Succeeded})
				if i == 0 {
					c.ReturnToInit()
				}
				c.Phase()
			}
		})
	}
	wg.Wait()
	for _, task := range tasks {
		if got, want := c.Gate(task.Stage).openedChanOrNilIfOpen() == nil, c.Phase().OpensStage(task.Stage); got != want {
			t.Errorf("gate of %s open: %v, want %v in %v", task.Name, got, want, c.Phase())
		}
	}
}
