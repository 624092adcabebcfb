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

// ResetOOMScore removes a process's protection from the out-of-memory killer: a
// negative oom_score_adj, which processes inherit from an agent that a service manager
// protects. Otherwise the kernel would kill tasks instead of the protected process. A
// process without protection keeps its value, and a process that has exited is not an
// error.
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
