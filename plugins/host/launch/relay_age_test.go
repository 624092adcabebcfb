package launch

import (
	"testing"
	"testing/synctest"
	"time"
)

// A plugin that is killed an hour after it has logged something was not ended by what it has logged.
func TestLastWordsAreNotOlderThanTheExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tail := &stderrTail{}
		tail.addLine("started", false)
		time.Sleep(time.Hour)
		since := time.Now().Add(-maxLastWordsAge)
		if got, want := errorWithStderr("was killed", tail, since).Error(), "was killed"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		tail.addLine("no bus", false)
		if got, want := errorWithStderr("exited", tail, since).Error(), "exited, its last words on stderr: no bus"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		tail.addLine("panic: bug", true)
		time.Sleep(time.Hour)
		if lines, isPanic := tail.panicOrLastLines(time.Now()); !isPanic || len(lines) != 1 {
			t.Errorf("a panic is %q, %t", lines, isPanic)
		}
	})
}
