package memtrim

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseMemory returns memory to the system: free memory, and the pages of the program
// itself, most of which are only needed at the start or in a burst of work. It blocks
// for some milliseconds, and may be called concurrently. Without /proc the pages of the
// program stay.
func ReleaseMemory() {
	debug.FreeOSMemory()
	releaseProgramPages()
}

func releaseProgramPages() {
	for _, p := range unmodifiedProgramMappings() {
		// The kernel reads the pages from the file again when they are used. Errors are
		// ignored.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, p.start, p.end-p.start, unix.MADV_DONTNEED)
	}
}

// memoryMapping is a memory mapping of the program file.
type memoryMapping struct {
	start, end uintptr
	residentKB int // size of the pages in memory, in kB
}

// unmodifiedProgramMappings returns the mappings of the program file that have no private pages. The
// dynamic linker or a debugger may have written to mappings with private pages. Other files are omitted, because only
// the program's mappings never move: another mapping could use the same address before ReleaseMemory releases its pages.
func unmodifiedProgramMappings() (parts []memoryMapping) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	var p memoryMapping
	ours := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		value := strings.TrimSpace(rest)
		switch {
		case !strings.HasSuffix(name, ":"): // a name without a colon is in the first line of a mapping
			p = memoryMapping{}
			_, _ = fmt.Sscanf(name, "%x-%x", &p.start, &p.end)
			ours = strings.HasPrefix(value, "r-") && strings.HasSuffix(value, " "+program)
		case name == "Rss:":
			_, _ = fmt.Sscan(value, &p.residentKB)
		case ours && name == "Anonymous:" && value == "0 kB":
			parts = append(parts, p)
		}
	}
	return parts
}
