package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLockExcludesOtherOpenFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second := open(), open()
	if err := Lock(first, unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Errorf("a second shared lock: %v", err)
	}
	if err := Lock(second, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, ErrLocked) {
		t.Errorf("exclusive beside a shared lock: %v, want %v", err, ErrLocked)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("after the close of the shared lock: %v", err)
	}
}
