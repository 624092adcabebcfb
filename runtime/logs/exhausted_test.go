package logs

import (
	"os"
	"path/filepath"
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

// An agent that connects to the log collector, and has not enough descriptors at some
// step of that, neither ends nor replaces it.
func TestCollectorIsKeptByAnAgentWithoutDescriptors(t *testing.T) {
	s := newSetting(t, Config{})
	stdout, _ := s.start(Limits{MaxFiles: 3, MaxFileSize: 1 << 20})
	out := s.open(stdout)
	s.write(out, "a\n")
	s.await(Stdout, "a\n")
	p := s.collector.Process()
	failed, connected := 0, 0
	for free := range 16 {
		restore := limitFree(t, free)
		l, err := s.collector.meet(t.Context(), true)
		restore()
		switch {
		case err == nil:
			connected++
			if l.process != p {
				t.Errorf("%d descriptors: connected to %v, want %v", free, l.process, p)
			}
			l.close()
		case keeper.Exhausted(err):
			failed++
		default:
			t.Errorf("%d descriptors: %v, want an error of the descriptors", free, err)
		}
		if !p.Alive() {
			t.Fatalf("%d descriptors: the collector was ended", free)
		}
	}
	if failed == 0 || connected == 0 {
		t.Errorf("%d attempts failed, %d succeeded: the test proves nothing", failed, connected)
	}
	s.write(out, "b\n")
	s.await(Stdout, "a\nb\n")

	// Not only the dial can fail.
	if err := os.Remove(filepath.Join(keeper.SocketDir(s.run), socketName)); err != nil {
		t.Fatal(err)
	}
	restore := limitFree(t, 0)
	_, err := s.collector.meet(t.Context(), true)
	restore()
	if !keeper.Exhausted(err) || !p.Alive() {
		t.Errorf("without a socket and a descriptor: %v, the collector runs: %v", err, p.Alive())
	}
}
