package processtest

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// SetOOMScore gives this process an oom_score_adj until the test ends; what it starts
// inherits it. It skips the test where that is not allowed. The value is that of the
// process: a test that calls it does not run in parallel with others.
func SetOOMScore(t *testing.T, score string) {
	t.Helper()
	const file = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(score), 0); errors.Is(err, fs.ErrPermission) {
		t.Skip("only root may protect a process from the lack of memory")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, []byte(strings.TrimSpace(string(was))), 0); err != nil {
			t.Error(err)
		}
	})
}
