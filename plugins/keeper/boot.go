package keeper

import (
	"os"
	"strings"
	"sync/atomic"
)

var boot atomic.Pointer[string] // nil before the first success of BootID

// BootID returns the identifier of the time since the machine was started: with
// another one no recorded [Process] is there. An error, which is possible only
// before the first success, is no evidence of a restart of the machine: see
// [Exhausted].
func BootID() (string, error) {
	if id := boot.Load(); id != nil {
		return *id, nil
	}
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	boot.Store(&id)
	return id, nil
}
