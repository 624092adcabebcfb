package keeper

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// CrashLog is the path of a file with the stderr of a helper process, which is empty
// unless the process has crashed.
type CrashLog string

// Read returns the beginning of what the process has said, at most 4 KiB: a panic begins
// with its reason. A file that cannot be read says nothing.
func (l CrashLog) Read() string {
	b, err := os.ReadFile(string(l))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[:min(len(b), 4<<10)]))
}

// Create empties the file, for the next process to write to. It follows no link.
func (l CrashLog) Create() (*os.File, error) {
	return os.OpenFile(string(l), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
}
