package memtrim

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestTrim(t *testing.T) {
	var whole int
	for _, p := range programParts() {
		_, _, err := unix.Syscall(unix.SYS_MADVISE, p.start, p.end-p.start, unix.MADV_POPULATE_READ)
		if err != 0 {
			t.Skip("the kernel cannot be asked to read a program as a whole: ", err)
		}
		whole += int(p.end-p.start) / 1024
	}
	resident := func() (n int) {
		for _, p := range programParts() {
			n += p.resident
		}
		return n
	}
	before := resident()
	Release()
	if after := resident(); before < whole*9/10 || after > before*9/10 {
		t.Errorf("of %d kB of the program %d are in memory, and %d after Trim", whole, before, after)
	}
}
