package tasksteps

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// resultsOfOneKindOfStep are results that only these steps have.
var resultsOfOneKindOfStep = map[Result][]Step{
	RunComplete:       {RecoverTask},
	TaskDead:          {RecoverTask, QueryEarlierStart},
	StartUndecided:    {RecoverTask},
	ProcessFound:      {RecoverTask, QueryEarlierStart, QueryStart, AbandonTask},
	ExitFound:         {RecoverTask, QueryEarlierStart, AbandonTask},
	ExitUnknown:       {QueryStart},
	NothingExecuted:   {QueryEarlierStart, QueryStart},
	NoAnswer:          {QueryEarlierStart, QueryStart, StopTask},
	ExitNotReported:   {AwaitExitAfterStop},
	AttemptsUsedUp:    {AwaitStopRetry},
	NoRerun:           {AwaitRerun},
	PluginDied:        {StartTask},
	DriverUnavailable: {AwaitExitAfterStop},
	RestartRequested:  {AwaitExit},
	RestartFailed:     {AwaitStopRetry},
	ForceKilled:       {CallPreKillingHooks, AwaitShutdownDelay, StopTask, AwaitStopRetry, AwaitExitAfterStop, DestroyWithoutExit},
	Restart:           {DecideRestart, DecideRerun},
	NoRestart:         {DecideRestart, DecideRerun},
	RerunRequested:    {AwaitRerun},
	Failed:            {AwaitDriver, CallPrestartHooks, StoreStartID, AwaitPluginTasks, StartTask, QueryStart, StopTask, DestroyWithoutExit},
	NoResult:          {},
}

// Each step has a row, or a reason, for each result.
func TestTableIsComplete(t *testing.T) {
	for s := RecoverTask; s < stepCount; s++ {
		d := table[s]
		if d.name == "" {
			t.Errorf("step %d has no name", s)
		}
		for r, steps := range resultsOfOneKindOfStep {
			if _, has := d.next[r]; has != slices.Contains(steps, s) {
				t.Errorf("%q has a row for the result %q: %v", s, r, has)
			}
		}
		for r, reason := range map[Result]string{Killed: d.outlastsKill, AgentShutdown: d.outlastsShutdown} {
			if _, has := d.next[r]; has == (reason != "") {
				t.Errorf("%q: row for the result %q: %v, reason for none: %q", s, r, has, reason)
			}
		}
		completions := 0
		for _, r := range []Result{Done, NothingExecuted, NoRerun, Restart} {
			if _, has := d.next[r]; has {
				completions++
			}
		}
		if completions != 1 {
			t.Errorf("%q has %d results with which it is complete", s, completions)
		}
	}
}

// A run ends even if no step has a result from the table.
func TestUnknownResultsEndTheRun(t *testing.T) {
	for first := RecoverTask; first < stepCount; first++ {
		step, steps := first, 0
		for ; step != None && steps < int(stepCount); steps++ {
			next, ok := Next(step, NoResult)
			if ok {
				t.Errorf("%q has a row for no result", step)
			}
			step = next
		}
		if step != None {
			t.Errorf("after %q, the run is at %q after %d steps", first, step, steps)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	for s := None; s < stepCount; s++ {
		var got Step
		text, err := json.Marshal(s)
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil || got != s {
			t.Errorf("%q becomes %q, %v", s, got, err)
		}
	}
	for r := Done; r < resultCount; r++ {
		var got Result
		text, err := json.Marshal(r)
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil || got != r {
			t.Errorf("%q becomes %q, %v", r, got, err)
		}
	}
}

// The table in the documentation is this one.
func TestReferenceTaskStepsTable(t *testing.T) {
	docpage.CheckPart(t, "reference/task-steps.md", markdownTable())
}

func markdownTable() string {
	var b strings.Builder
	b.WriteString("| Step | Result | Next step |\n| --- | --- | --- |\n")
	for s := RecoverTask; s < stepCount; s++ {
		name := s.String()
		for r := range resultCount {
			if next, ok := table[s].next[r]; ok {
				nextName := next.String()
				if next == None {
					nextName = "(the run ends)"
				}
				fmt.Fprintf(&b, "| %s | %s | %s |\n", name, r, nextName)
				name = ""
			}
		}
		for r, reason := range []string{table[s].outlastsKill, table[s].outlastsShutdown} {
			if reason != "" {
				fmt.Fprintf(&b, "| | *%s* | *continues: %s* |\n", []Result{Killed, AgentShutdown}[r], reason)
			}
		}
	}
	b.WriteString("\n| Step | Note |\n| --- | --- |\n")
	for s := RecoverTask; s < stepCount; s++ {
		if table[s].note != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", s, table[s].note)
		}
	}
	return b.String()
}

func TestUnknownNames(t *testing.T) {
	if step, result := stepCount.String(), resultCount.String(); step != "no step" || result != "unknown result" {
		t.Errorf("%q, %q", step, result)
	}
}
