package keeper

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// CrashLogPath is the path of a file with the stderr of a helper process. The file is empty unless
// the process has crashed.
type CrashLogPath string

// ReadBeginning returns the first 4 KiB of the file, which contain the message of a panic. It returns an empty
// string if the file cannot be read.
func (l CrashLogPath) ReadBeginning() string {
	b, err := os.ReadFile(string(l))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[:min(len(b), 4<<10)]))
}

// Create opens the empty file for the stderr of the next process, and truncates an existing file. It does not follow
// symbolic links.
func (l CrashLogPath) Create() (*os.File, error) {
	return os.OpenFile(string(l), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
}
