package allocdir

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSpreadAllocDirsSetsTheFlagOnce(t *testing.T) {
	dir := t.TempDir()
	readFlags := func() int {
		t.Helper()
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		flags, err := unix.IoctlGetInt(int(d.Fd()), unix.FS_IOC_GETFLAGS)
		if err != nil {
			t.Skipf("the file system has no flags: %v", err)
		}
		return flags
	}
	var fsStat unix.Statfs_t
	if err := unix.Statfs(dir, &fsStat); err != nil {
		t.Fatal(err)
	}
	before := readFlags()
	for range 2 {
		if err := SpreadAllocDirs(dir); err != nil {
			t.Fatal(err)
		}
		if got := readFlags(); fsStat.Type == unix.EXT4_SUPER_MAGIC && got != before|topDirFlag {
			t.Errorf("flags %#x, before %#x", got, before)
		}
	}
	if err := SpreadAllocDirs(dir + "/missing"); err == nil {
		t.Error("no error for a missing directory")
	}
}

func TestSpreadAllocDirsNeedsNoFlags(t *testing.T) {
	if err := SpreadAllocDirs("/proc"); err != nil {
		t.Errorf("a file system without flags: %v", err)
	}
}
