package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// Changes that free space can be stored on a full disk, and CheckDiskSpaceForNewObjects rejects new objects.
func TestFullDiskHasSpaceForStops(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip("cannot mount a tmpfs:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := Open(t.Context(), Config{StateFilePath: filepath.Join(dir, FileName), ReserveDiskSpace: true, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const jobs = 100
	job := func(i int, stop bool) *api.Job {
		return &api.Job{ID: new(fmt.Sprintf("job-%d", i)), Namespace: new("default"), Version: new(uint64(0)), Stop: new(stop), Meta: map[string]string{"x": string(make([]byte, 3000))}}
	}
	put := func(stop bool) {
		t.Helper()
		for i := range jobs {
			if _, err := s.Update(t.Context(), func(tx *Txn) error { tx.PutJobAndVersion(job(i, stop)); return nil }); err != nil {
				t.Fatalf("job %d, stop %t: %v", i, stop, err)
			}
		}
	}
	put(false)
	if err := s.CheckDiskSpaceForNewObjects(); err != nil {
		t.Errorf("on a disk with space: %v", err)
	}
	file, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 1 << 20; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := s.CheckDiskSpaceForNewObjects(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	put(true)
	if s.Snapshot().Job(nil, "default", "job-99").Stop == nil || s.LastWriteErr() != nil {
		t.Errorf("stopped: %v", s.LastWriteErr())
	}
}

// A disk without inodes has no room for new objects, although it has free space, and stops can be stored.
func TestNoRoomForNewObjectsWithoutInodes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m,nr_inodes=100"); err != nil {
		t.Skip("cannot mount a tmpfs:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := Open(t.Context(), Config{StateFilePath: filepath.Join(dir, FileName), ReserveDiskSpace: true, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CheckDiskSpaceForNewObjects(); err != nil {
		t.Errorf("on a disk with inodes: %v", err)
	}
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint("ballast-", i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := s.CheckDiskSpaceForNewObjects(); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("on a disk without inodes: %v", err)
	}
	if _, err := s.Update(t.Context(), func(tx *Txn) error { tx.PutEvaluation(&api.Evaluation{ID: "stop"}); return nil }); err != nil {
		t.Errorf("a stop: %v", err)
	}
}

// CheckFreeDiskSpace's file has no name in the directory. With a name, a killed agent would leave it behind.
func TestCheckOfDiskSpaceLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Skip("the file system does not support O_TMPFILE:", err)
	}
	unix.Close(fd)
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	if err := CheckFreeDiskSpace(dir, 1<<60); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("an exbibyte is free: %v", err)
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a file was created in the directory: %d bytes of events, %v", n, err)
	}
}

// Where O_TMPFILE is not supported, the file's name is removed before the file gets space.
func TestUnlinkedFile(t *testing.T) {
	dir := t.TempDir()
	f, err := createAndUnlinkFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("files %v, %v", entries, err)
	}
}
