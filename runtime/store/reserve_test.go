package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// Changes that free space can be stored on a full disk, and new objects are rejected by CheckSpaceForNewObjects.
func TestFullDiskHasSpaceForStops(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip("cannot mount a tmpfs:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := Open(Config{Path: filepath.Join(dir, FileName), ReserveSpace: true, Logger: hclog.NewNullLogger()})
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
			if _, err := s.Update(t.Context(), func(tx *Txn) error { tx.PutJob(job(i, stop)); return nil }); err != nil {
				t.Fatalf("job %d, stop %t: %v", i, stop, err)
			}
		}
	}
	put(false)
	if err := s.CheckSpaceForNewObjects(); err != nil {
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
	if err := s.CheckSpaceForNewObjects(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	put(true)
	if s.Snapshot().Job(nil, "default", "job-99").Stop == nil || s.WriteErr() != nil {
		t.Errorf("stopped: %v", s.WriteErr())
	}
}
