//go:build linux

package osprocess

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ResetOOMScore sets a negative oom_score_adj of a process to 0. A negative value protects a process from the
// out-of-memory killer, and processes inherit it from an agent that a service manager protects: without the reset, the
// kernel would kill other tasks in place of the protected process. Other values do not change, and a process that has
// exited is not an error.
func ResetOOMScore(pid int) error {
	name := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	score, err := os.ReadFile(name)
	if err == nil && bytes.HasPrefix(score, []byte("-")) {
		err = os.WriteFile(name, []byte("0"), 0)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
