package process

import (
	"os"
	"strings"
	"sync/atomic"
)

var cachedBootID atomic.Pointer[string] // nil before the first success of BootID

// BootID returns the kernel's identifier of the current boot. An [ID] that was recorded
// with another identifier names no process. An error is possible only before the first success
// and does not mean that the machine was restarted: see [IsResourceExhausted].
func BootID() (string, error) {
	if id := cachedBootID.Load(); id != nil {
		return *id, nil
	}
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	cachedBootID.Store(&id)
	return id, nil
}
