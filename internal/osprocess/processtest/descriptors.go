package processtest

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// LimitDescriptors leaves this process the given number of free descriptors until the
// returned function is called, or until the test ends. It fails the test if the limit
// cannot be set. The limit applies to the process: a test that calls LimitDescriptors
// must not run in parallel with others.
func LimitDescriptors(t *testing.T, free int) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	next := make([]int, free+1)
	for i := range next {
		fd, err := unix.Dup(0) // the lowest free number
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		next[i] = fd
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next[free]), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}
