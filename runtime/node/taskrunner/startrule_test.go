package taskrunner

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner/taskdriver"
)

// TestStartRule has the action for each record with each answer.
func TestStartRule(t *testing.T) {
	answers := [taskdriver.AnswerCount]string{"none", "task", "task alone", "not executed", "unknown", "reboot"}
	for _, row := range []struct {
		record recordedStartState
		name   string
		want   [taskdriver.AnswerCount]startAction
	}{
		{recordNoStart, "no start", [...]startAction{actionStart, actionStart, actionStart, actionStart, actionStart, actionForget}},
		{recordID, "id", [...]startAction{actionAsk, actionAdopt, actionAwait, actionStart, actionMarkLost, actionForget}},
		{recordRunningID, "id of a running task", [...]startAction{actionAsk, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget}},
		{recordHandle, "handle", [...]startAction{actionKeep, actionAdopt, actionAwait, actionMarkLost, actionMarkLost, actionForget}},
		{recordLost, "lost record of a running task", [...]startAction{actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionMarkLost, actionForget}},
		{recordEnded, "exit", [...]startAction{actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionDestroy, actionForget}},
		{recordNextID, "exit and next id", [...]startAction{actionAsk, actionAdopt, actionAwait, actionDestroy, actionMarkLost, actionForget}},
	} {
		for answer, name := range answers {
			if got := startActionFor(row.record, taskdriver.Answer(answer)); got != row.want[answer] {
				t.Errorf("record %q, answer %q: action %d, want %d", row.name, name, got, row.want[answer])
			}
		}
	}
}

// TestOnlyUnexecutedStartsAreRepeated checks the rule as a whole: a task with a start is started only if the start has
// certainly executed nothing, and a start that nobody has answered for is neither repeated nor destroyed.
func TestOnlyUnexecutedStartsAreRepeated(t *testing.T) {
	for record := range startRecordCount {
		for answer := range taskdriver.AnswerCount {
			action := startActionFor(record, answer)
			if action == actionStart && record != recordNoStart && answer != taskdriver.AnswerNotExecuted {
				t.Errorf("record %d, answer %d: the task starts", record, answer)
			}
			undecided := record == recordID || record == recordRunningID || record == recordNextID || record == recordHandle
			if undecided && answer == taskdriver.AnswerNone && action != actionAsk && action != actionKeep {
				t.Errorf("record %d without an answer: action %d", record, action)
			}
		}
	}
}
