package memtrim

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestReleaseMemory(t *testing.T) {
	var programKB int
	for _, p := range unmodifiedProgramMappings() {
		_, _, err := unix.Syscall(unix.SYS_MADVISE, p.start, p.end-p.start, unix.MADV_POPULATE_READ)
		if err != 0 {
			t.Skip("the kernel cannot be asked to read a program as a whole: ", err)
		}
		programKB += int(p.end-p.start) / 1024
	}
	resident := func() (n int) {
		for _, p := range unmodifiedProgramMappings() {
			n += p.residentKB
		}
		return n
	}
	before := resident()
	ReleaseMemory()
	if after := resident(); before < programKB*9/10 || after > before*9/10 {
		t.Errorf("of %d kB of the program %d are in memory, and %d after Trim", programKB, before, after)
	}
}
