package launch

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// limitFree leaves this process with so many free descriptors until the returned
// function is called. A test that calls it does not run in parallel with others.
func limitFree(t *testing.T, free int) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	next := make([]int, free+1)
	for i := range next {
		fd, err := unix.Dup(0) // the least number that is free
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

// A reattach that has not enough descriptors at some step leaves the plugin running,
// and can be repeated.
func TestReattachWithoutDescriptorsKeepsThePlugin(t *testing.T) {
	cfg, _ := newConfig(t, "schema")
	first := mustStart(t, cfg)
	rec := first.Record()
	first.Detach()
	process := keeper.Process{PID: rec.Pid, StartTime: rec.StartTime}
	failed, reattached := 0, 0
	for free := range 12 {
		restore := limitFree(t, free)
		p, err := Reattach(t.Context(), cfg, rec)
		restore()
		switch {
		case err == nil:
			reattached++
			p.Detach()
		case errors.Is(err, ErrExhausted):
			failed++
		default:
			t.Errorf("%d descriptors: %v, want %v", free, err, ErrExhausted)
		}
		if !process.Alive() {
			t.Fatalf("%d descriptors: the plugin was ended, %v", free, err)
		}
	}
	if failed == 0 || reattached == 0 {
		t.Errorf("%d attempts failed, %d succeeded: the test proves nothing", failed, reattached)
	}
	p, err := Reattach(t.Context(), cfg, rec)
	if err != nil {
		t.Fatal(err)
	}
	p.Stop(t.Context())
}
