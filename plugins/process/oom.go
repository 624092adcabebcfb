package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ResetOOMScore takes from a process what protects it when memory runs out: a negative
// oom_score_adj, which processes inherit from an agent that a service manager protects.
// The kernel would end tasks in the place of what does their work. A process that is not
// protected keeps its value, and one that has ended is no error.
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
