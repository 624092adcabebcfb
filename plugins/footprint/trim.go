package footprint

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Trim gives back to the system what only the start of the process, or a burst of
// work, has needed: free memory, and the pages of files that are mapped, the program
// itself before all. It blocks for some milliseconds, and may be called concurrently.
// Where there is no /proc the pages stay.
func Trim() {
	debug.FreeOSMemory()
	for _, p := range fileParts() {
		// The pages come back from the file when they are used again. An error changes
		// nothing.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, p.start, p.end-p.start, unix.MADV_DONTNEED)
	}
}

// part is a part of a file in memory.
type part struct {
	start, end uintptr
	resident   int // kB
}

// fileParts returns the parts of files that are in memory only to be read, and are as
// they are in the file: the dynamic linker writes to some, and a debugger may.
func fileParts() (parts []part) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	var p part
	read := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		value := strings.TrimSpace(rest)
		switch {
		case !strings.HasSuffix(name, ":"): // the first line of a mapping
			p = part{}
			_, _ = fmt.Sscanf(name, "%x-%x", &p.start, &p.end)
			read = strings.HasPrefix(value, "r-") && strings.Contains(value, " /")
		case name == "Rss:":
			_, _ = fmt.Sscan(value, &p.resident)
		case read && name == "Anonymous:" && value == "0 kB":
			parts = append(parts, p)
		}
	}
	return parts
}
