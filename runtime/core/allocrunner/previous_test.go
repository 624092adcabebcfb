package allocrunner

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
)

// remotePrevious is a previous allocation on another node.
type remotePrevious struct {
	ended   chan struct{}
	moveErr error
	moved   []string // task names passed to MoveData
}

func (r *remotePrevious) WaitEnded(ctx context.Context) error {
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *remotePrevious) MoveData(_ context.Context, _ *allocdir.Dir, tasks []string) error {
	r.moved = tasks
	return r.moveErr
}

func TestPreviousAllocOfAnotherNode(t *testing.T) {
	for _, c := range []struct {
		name    string
		moveErr error
	}{{"with data", nil}, {"without data", errors.New("the node is gone")}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				previous := &remotePrevious{ended: make(chan struct{}), moveErr: c.moveErr}
				const id = "66666666-2222-3333-4444-555555555555"
				a := startHarness(t, parseJob(t, jobTextFromParts("service", stickyEphemeralDiskText(), endlessTaskText)), func(c *testConfig) {
					c.Alloc.PreviousAllocation = id
					c.FindRemotePrevious = func(alloc *api.Allocation) builtinhooks.PreviousAlloc {
						wantEqual(t, "previous", alloc.PreviousAllocation, id)
						return previous
					}
				})
				a.advance(time.Hour) // the wait has no timeout
				wantEqual(t, "before the end", a.taskState("web").State, "pending")
				close(previous.ended)
				a.advance(time.Second)
				wantEqual(t, "afterwards", a.taskState("web").State, "running")
				wantEqual(t, "moved tasks", strings.Join(previous.moved, " "), "web")
				text := ""
				for _, e := range a.taskState("web").Events {
					text += e.DisplayMessage + e.Message + "\n"
				}
				const event = "the task starts without the data of the previous allocation: the node is gone"
				if strings.Contains(text, event) != (c.moveErr != nil) {
					t.Errorf("events\n%s", text)
				}
				a.Stop()
				a.wait()
			})
		})
	}
}

func TestPreemptedAllocsAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
		a := startHarness(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) {
			c.Alloc.PreemptedAllocations = []string{"a", "b"}
			c.AllocDone = func(id string) <-chan struct{} { return ended[id] }
		})
		close(ended["b"])
		a.advance(time.Hour)
		wantEqual(t, "while one runs", a.taskState("web").State, "pending")
		close(ended["a"])
		a.advance(time.Second)
		wantEqual(t, "afterwards", a.taskState("web").State, "running")
		a.Stop()
		a.wait()
	})
}
