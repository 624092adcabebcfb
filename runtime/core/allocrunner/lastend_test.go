package allocrunner

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// A task's last end is in its record, whatever drivers and hooks emit, and also after an agent restart.
func TestLastEndIsRecorded(t *testing.T) {
	const oftenText = "restart {\n attempts = 9\n interval = \"1h\"\n delay = \"4s\"\n mode = \"delay\"\n}\n" // the jitter adds up to a second
	restart := func(countsAsFailure bool) func(*testing.T, *testAgent) {
		return func(t *testing.T, a *testAgent) {
			web, _ := a.tasks.findByName("web")
			if err := web.Restart(t.Context(), model.EventRestartSignal("my reason"), countsAsFailure); err != nil {
				t.Error(err)
			}
		}
	}
	for name, test := range map[string]struct {
		config string
		after  time.Duration
		act    func(*testing.T, *testAgent) // may be nil
		want   string                       // the set fields, without times
		next   bool                         // the task starts again later
	}{
		"an exit":                              {`run_for = "1s"; exit_codes = [3]`, 2 * time.Second, nil, "failure exit_code=3 in_row=1", true},
		"the second exit":                      {`run_for = "1s"; exit_codes = [3]`, 7500 * time.Millisecond, nil, "failure exit_code=3 in_row=2", true},
		"another exit":                         {`run_for = "1s"; exit_codes = [3, 4]`, 7500 * time.Millisecond, nil, "failure exit_code=4 in_row=1", true},
		"an exit after a run of a minute":      {`run_for = "61s"; exit_codes = [3]`, 127500 * time.Millisecond, nil, "failure exit_code=3 in_row=1", true},
		"a signal":                             {`run_for = "1s"; exit_signal = 11`, 2 * time.Second, nil, "failure signal=11 in_row=1", true},
		"a failed start":                       {`start_errors = ["no room"]; recoverable = true`, time.Second, nil, `failure start_failed error="no room" in_row=1`, true},
		"the second failed start":              {`start_errors = ["no room"]; recoverable = true`, 5500 * time.Millisecond, nil, `failure start_failed error="no room" in_row=2`, true},
		"a restart that a user has requested":  {"", time.Second, restart(false), `exit_code=130 signal=2 requested="my reason" in_row=0`, true},
		"a restart that a check has requested": {"", time.Second, restart(true), `failure exit_code=130 signal=2 requested="my reason" in_row=1`, true},
		"a stop":                               {"", time.Second, func(_ *testing.T, a *testAgent) { a.Stop() }, "exit_code=130 signal=2 stopped in_row=0", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := strings.ReplaceAll(test.config, "; ", "\n")
				a := startAgent(t, parseJob(t, jobTextFromParts("service", oftenText, "task \"web\" {\n driver = \"fake\"\n config {\n"+config+"\n}\n}")), nil)
				a.advance(test.after)
				if test.act != nil {
					test.act(t, a)
					a.advance(100 * time.Millisecond)
				}
				web, _ := a.tasks.findByName("web")
				for range 20 {
					web.EmitEvent(model.EventHookMessage("", "an event for people", nil))
				}
				a.advance(time.Second / 10) // async puts are written
				local, _, err := a.store.TaskFields("", "web")
				if err != nil || local.LastEnd == nil {
					t.Fatalf("record %+v, error %v", local.LastEnd, err)
				}
				end := local.LastEnd
				var fields []string
				add := func(isSet bool, format string, args ...any) {
					if isSet {
						fields = append(fields, fmt.Sprintf(format, args...))
					}
				}
				add(end.IsFailure(), "failure")
				add(end.StartFailed, "start_failed")
				add(end.ExitCode != 0, "exit_code=%d", end.ExitCode)
				add(end.Signal != 0, "signal=%d", end.Signal)
				add(end.Error != "", "error=%q", end.Error)
				add(end.RestartRequested, "requested=%q", end.RequestReason)
				add(end.Stopped, "stopped")
				add(true, "in_row=%d", end.RunsInRow)
				if got := strings.Join(fields, " "); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
				if end.NextStart.IsZero() == test.next || end.Time.IsZero() || end.OutputStart.IsZero() || end.OutputStart.After(end.Time) {
					t.Errorf("times %v, %v, %v", end.OutputStart, end.Time, end.NextStart)
				}
			})
		})
	}
}
