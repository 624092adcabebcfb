package footprint

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Release gives back to the system what only the start of the process, or a burst of
// work, has needed: free memory, and the pages of the program itself. It blocks for some
// milliseconds, and may be called concurrently. Where there is no /proc the pages stay.
func Release() {
	debug.FreeOSMemory()
	for _, p := range programParts() {
		// The pages come back from the file when they are used again. An error changes
		// nothing.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, p.start, p.end-p.start, unix.MADV_DONTNEED)
	}
}

// mapping is a part of the program in memory.
type mapping struct {
	start, end uintptr
	resident   int // kB
}

// programParts returns the parts of the program that are in memory as they are in its
// file: the dynamic linker writes to some, and a debugger may. They never move; what else
// is mapped may have made room for another thing before it is let go.
func programParts() (parts []mapping) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	var p mapping
	ours := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		value := strings.TrimSpace(rest)
		switch {
		case !strings.HasSuffix(name, ":"): // the first line of a mapping
			p = mapping{}
			_, _ = fmt.Sscanf(name, "%x-%x", &p.start, &p.end)
			ours = strings.HasPrefix(value, "r-") && strings.HasSuffix(value, " "+program)
		case name == "Rss:":
			_, _ = fmt.Sscan(value, &p.resident)
		case ours && name == "Anonymous:" && value == "0 kB":
			parts = append(parts, p)
		}
	}
	return parts
}
