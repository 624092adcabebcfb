package taskview

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/terminal/terminaltest"
	"github.com/nomad-lite/nomad-lite/runtime/model"
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
		last   *api.TaskEvent
		want   []string
	}{
		{"the first events", events("1a", "2b"), nil, []string{"a", "b"}},
		{"nothing new", events("1a", "2b"), events("2b")[0], nil},
		{"one that is as old as the last", events("1a", "2b", "2c"), events("2b")[0], []string{"c"}},
		{"one from before the clock was set back", events("2a", "1b"), events("2a")[0], []string{"b"}},
		{"the last one has gone", events("3c", "4d"), events("2b")[0], []string{"c", "d"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, e := range findNewEvents(c.events, c.last) {
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
	tty := terminaltest.New(t, 80, 10)
	v := newTestView(t, tty, "server")
	defer v.Close()
	v.updateTask("server", model.TaskPending,
		&api.TaskEvent{Type: api.TaskTerminated, ExitCode: 3}, &api.TaskEvent{Type: api.TaskRestarting, StartDelay: int64(time.Hour)})
	if live := " server  main       pending  exit code 3, restarts at "; !strings.Contains(tty.String(), live) {
		t.Errorf("the terminal shows\n%s\nwithout %q", tty, live)
	}
}
