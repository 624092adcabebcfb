package allocrunner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Times stored by an agent with a fast clock must not delay actions that depend on elapsed time.
func TestStoredTimesInTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		created := time.Now()
		time.Sleep(time.Minute)
		now := time.Now()
		for _, c := range []struct {
			name          string
			started, want time.Time
		}{
			{"a start in the past is as it is", now.Add(-time.Second), now.Add(-time.Second)},
			{"a start before this runner is as it is", now.Add(-time.Hour), now.Add(-time.Hour)},
			{"a start in the future was before this runner", now.AddDate(1, 0, 0).Round(0), created},
			{"no start stays none", time.Time{}, time.Time{}},
		} {
			if got := startTimeNotInFuture(&api.TaskState{StartedAt: c.started}, created); !got.Equal(c.want) {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}

		group := &api.TaskGroup{Name: new("g"), MaxRunDuration: new(10 * time.Minute)}
		alloc := &api.Allocation{TaskGroup: "g", Job: &api.Job{Type: new("batch"), TaskGroups: []*api.TaskGroup{group}}}
		alloc.CreateTime = now.AddDate(1, 0, 0).UnixNano()
		if got, want := maxRunDeadline(alloc), now.Add(10*time.Minute); !got.Equal(want) {
			t.Errorf("the deadline of an allocation of the future is %s, want %s", got, want)
		}
		alloc.CreateTime = now.Add(-time.Minute).UnixNano()
		if got, want := maxRunDeadline(alloc), now.Add(9*time.Minute); !got.Equal(want) {
			t.Errorf("the deadline of an allocation is %s, want %s", got, want)
		}
	})
}
