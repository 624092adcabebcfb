//go:build linux

package osprocess

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
)

func TestIsResourceExhausted(t *testing.T) {
	for err, want := range map[error]bool{
		&os.PathError{Op: "open", Path: "f", Err: unix.EMFILE}:            true,
		fmt.Errorf("dial: %w", os.NewSyscallError("socket", unix.ENFILE)): true,
		os.NewSyscallError("sendmsg", unix.ENOBUFS):                       true,
		os.NewSyscallError("mmap", unix.ENOMEM):                           true,
		fmt.Errorf("execute: %w: %w", ErrNoFreeProcess, unix.EAGAIN):      true,
		os.NewSyscallError("read", unix.EAGAIN):                           false,
		os.NewSyscallError("connect", unix.ECONNREFUSED):                  false,
		&os.PathError{Op: "open", Path: "f", Err: unix.ENOENT}:            false,
		fmt.Errorf("process %d: %w", 1, os.ErrProcessDone):                false,
	} {
		if got := IsResourceExhausted(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// BootID caches the boot id after the first success, and does not cache a failure.
func TestBootIDWithoutDescriptors(t *testing.T) {
	cachedBootID.Store(nil)
	restore := processtest.LimitDescriptors(t, 0)
	id, err := BootID()
	restore()
	if id != "" || !IsResourceExhausted(err) {
		t.Errorf("%q, %v, want an error of the descriptors", id, err)
	}
	id, err = BootID()
	if id == "" || err != nil {
		t.Errorf("with descriptors: %q, %v", id, err)
	}
	restore = processtest.LimitDescriptors(t, 0)
	again, err := BootID()
	restore()
	if again != id || err != nil {
		t.Errorf("the second time: %q, %v, want %q", again, err, id)
	}
}
