//go:build linux

package osprocess

import (
	"os"
	"strings"
	"sync/atomic"
)

// cachedBootID is the result of BootID; nil before the first success.
var cachedBootID atomic.Pointer[string]

// BootID returns the kernel's identifier of the current boot. An [ID] that was recorded
// during another boot identifies no process. Errors are only possible before the first
// success; they do not mean that the machine was restarted: see [IsResourceExhausted].
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
