package taskrunner

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// TestStartRule has the action for each record with each answer.
func TestStartRule(t *testing.T) {
	answers := [taskdriver.AnswerCount]string{"none", "task", "task alone", "not executed", "unknown", "reboot"}
	for _, row := range []struct {
		start record.Start
		name  string
		want  [taskdriver.AnswerCount]startAction
	}{
		{record.NoStart, "no start", [...]startAction{actionStart, actionStart, actionStart, actionStart, actionStart, actionForget}},
		{record.WithID, "id", [...]startAction{actionAsk, actionAdopt, actionAwait, actionStart, actionMarkLost, actionForget}},
		{record.RunningByID, "id of a running task", [...]startAction{actionAsk, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget}},
		{record.WithHandle, "handle", [...]startAction{actionKeep, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget}},
		{record.Lost, "lost record of a running task", [...]startAction{actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionForget}},
		{record.Ended, "exit", [...]startAction{actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionForget}},
		{record.WithNextID, "exit and next id", [...]startAction{actionAsk, actionAdopt, actionAwait, actionDestroy, actionMarkLost, actionForget}},
	} {
		for answer, name := range answers {
			if got := startActionFor(row.start, taskdriver.Answer(answer)); got != row.want[answer] {
				t.Errorf("start %q, answer %q: action %d, want %d", row.name, name, got, row.want[answer])
			}
		}
	}
}

// TestOnlyUnexecutedStartsAreRepeated checks the rule as a whole: a task with a start is started only if the start has certainly
// executed nothing. A start without an answer is neither repeated nor destroyed.
func TestOnlyUnexecutedStartsAreRepeated(t *testing.T) {
	for start := range record.StartCount {
		for answer := range taskdriver.AnswerCount {
			action := startActionFor(start, answer)
			if action == actionStart && start != record.NoStart && answer != taskdriver.AnswerNotExecuted {
				t.Errorf("start %d, answer %d: the task starts", start, answer)
			}
			undecided := start == record.WithID || start == record.RunningByID || start == record.WithNextID || start == record.WithHandle
			if undecided && answer == taskdriver.AnswerNone && action != actionAsk && action != actionKeep {
				t.Errorf("start %d without an answer: action %d", start, action)
			}
		}
	}
}
