package helperdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// mountSmallDisk mounts a file system with few inodes, and returns its directory.
func mountSmallDisk(t *testing.T, inodes int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=16m,nr_inodes=%d", inodes)); err != nil {
		t.Skip("cannot mount a tmpfs:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// useAllInodes creates files until the file system has no free inode, and returns their number.
func useAllInodes(t *testing.T, dir, prefix string) (count int) {
	t.Helper()
	for ; ; count++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d", prefix, count)))
		if errors.Is(err, unix.ENOSPC) {
			return count
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// Helper processes can listen on a disk without inodes, also when others use the freed inodes after each of them.
func TestListenWithoutFreeInodes(t *testing.T) {
	path := mountSmallDisk(t, 1000)
	d, err := OpenOrCreate(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for range 2 { // a second call reserves no more
		if err := d.ReserveInodes(); err != nil {
			t.Fatal(err)
		}
	}
	if d.EnsureFreeInodes() {
		t.Error("reserved inodes are freed while others are free")
	}
	for i := range reservedInodes / freedInodes {
		useAllInodes(t, path, fmt.Sprint("ballast-", i))
		listener, err := d.ListenReplacingSocket(fmt.Sprintf("%d.sock", i))
		if err != nil {
			t.Fatalf("helper process %d: %v", i, err)
		}
		listener.Close()
	}
	useAllInodes(t, path, "ballast-last")
	if _, err := d.ListenReplacingSocket("last.sock"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("after the reserve is used up: %v", err)
	}
}

// The reserve of a small disk leaves most inodes to others, and a disk without a limit has none.
func TestReservedInodesOfDisks(t *testing.T) {
	for inodes, wanted := range map[int]int{101: 25, 10_000: reservedInodes, 0: 0} {
		path := mountSmallDisk(t, inodes)
		d, err := OpenOrCreate(path)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := d.ReserveInodes(); err != nil {
			t.Fatal(err)
		}
		names, err := os.ReadDir(filepath.Join(path, reservedInodesDirName))
		if len(names) != wanted && len(names) != wanted-1 || err != nil && wanted > 0 { // the root directory and the reserve directory need inodes
			t.Errorf("disk with %d inodes: %d are reserved, want %d; %v", inodes, len(names), wanted, err)
		}
	}
}
