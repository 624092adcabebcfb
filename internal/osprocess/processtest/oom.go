package processtest

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// SetOOMScore sets the oom_score_adj of this process until the test ends; child
// processes inherit it. It skips the test if the kernel does not permit the change. The
// value applies to the process: a test that calls SetOOMScore must not run in parallel
// with others.
func SetOOMScore(t *testing.T, score string) {
	t.Helper()
	const oomScoreFile = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(oomScoreFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(oomScoreFile, []byte(score), 0); errors.Is(err, fs.ErrPermission) {
		t.Skip("only root may protect a process from the lack of memory")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(oomScoreFile, []byte(strings.TrimSpace(string(was))), 0); err != nil {
			t.Error(err)
		}
	})
}
