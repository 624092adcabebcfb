package memtrim

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime/debug"

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
		// The lines are not strings, because in a process that never collects garbage all lines of the file would stay in memory.
		name, rest, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		value := bytes.TrimSpace(rest)
		switch {
		case !bytes.HasSuffix(name, []byte(":")): // a name without a colon is in the first line of a mapping
			ours = bytes.HasPrefix(value, []byte("r-")) && bytes.HasSuffix(value, []byte(" "+program))
			if ours {
				p = memoryMapping{}
				_, _ = fmt.Sscanf(string(name), "%x-%x", &p.start, &p.end)
			}
		case ours && string(name) == "Rss:":
			_, _ = fmt.Sscan(string(value), &p.residentKB)
		case ours && string(name) == "Anonymous:" && string(value) == "0 kB":
			parts = append(parts, p)
		}
	}
	return parts
}
