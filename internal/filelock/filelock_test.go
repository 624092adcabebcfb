package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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

func TestLockWithinReturnsWhenContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	if err := Lock(files[0], unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := LockWithin(ctx, files[1], unix.LOCK_EX, time.Hour); !errors.Is(err, ErrLocked) || ctx.Err() == nil {
		t.Errorf("got %v, want %v after the end of the context", err, ErrLocked)
	}
	if err := files[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := LockWithin(ctx, files[1], unix.LOCK_EX, time.Hour); err != nil {
		t.Errorf("a free lock after the end of the context: %v", err)
	}
}
