package process

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// Whichever step of a start finds no free descriptor, the host is told to repeat the start, or it succeeds when a descriptor is
// free. The program is executed once.
func TestStartWithFewDescriptors(t *testing.T) {
	forEachMarkStorage(t, func(t *testing.T) {
		t.Setenv(keeper.EnvSocket, "/nonexistent") // so that starts leave a mark
		failed := 0
		for free := 0; ; free++ {
			s := newStartRequest(t)
			ran := filepath.Join(s.TaskDir(), "ran")
			command := shellCommand("echo >>ran")
			type result struct {
				p   *Process
				err error
			}
			results := make(chan result, 1)
			restore := processtest.LimitDescriptors(t, free)
			go func() {
				p, err := Start(t.Context(), s, command)
				results <- result{p, err}
			}()
			waitUntil(t, "the start returns or has executed the program", func() bool {
				_, err := os.Stat(ran)
				return err == nil || len(results) > 0
			})
			waited := len(results) == 0
			restore()
			r := <-results
			if r.err != nil {
				failed++
				if !driver.IsResourceExhausted(r.err) || !driver.IsRecoverable(r.err) {
					t.Fatalf("with %d free descriptors: %v", free, r.err)
				}
				r.p = startProcess(t, s, command)
			}
			if got := waitExit(t, r.p); !got.Successful() {
				t.Errorf("exit result %+v", got)
			}
			if text, err := os.ReadFile(ran); string(text) != "\n" {
				t.Fatalf("with %d free descriptors, the program was executed %d times: %v", free, len(text), err)
			}
			if err := r.p.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			if r.err == nil && !waited {
				break // more descriptors change nothing
			}
		}
		if failed < 3 {
			t.Errorf("%d starts found no descriptor", failed)
		}
	})
}

// A fork returns EAGAIN when a limit of processes is reached.
func TestForkWithoutFreeProcess(t *testing.T) {
	err := (&ProcessWithoutExec{}).explainExecError("/bin/true", unix.EAGAIN)
	if !osprocess.IsTableFull(err) || !driver.IsRecoverable(err) {
		t.Errorf("error %v", err)
	}
}

// blockingLauncher counts the starts that have reached it.
type blockingLauncher struct {
	Launcher
	reached atomic.Int32
	unblock chan struct{}
}

func (l *blockingLauncher) PrepareLaunch(Program) (*Launch, error) {
	l.reached.Add(1)
	<-l.unblock
	return nil, errors.New("not today")
}

func TestStartsAtOneTimeAreBounded(t *testing.T) {
	useCgroupHierarchy(t, cgroupHierarchy{unavailableReason: "none here"})
	synctest.Test(t, func(t *testing.T) {
		slots, old := make(chan struct{}, 2), startSlots
		startSlots = func() chan struct{} { return slots }
		defer func() { startSlots = old }()
		l := &blockingLauncher{unblock: make(chan struct{})}
		var wg sync.WaitGroup
		for range 5 {
			s := newStartRequest(t)
			wg.Go(func() {
				if p, err := StartWithoutExec(t.Context(), s, Command{Path: "/bin/true", Launcher: l}); err == nil {
					t.Errorf("process %d was started", p.PID())
				}
			})
			time.Sleep(time.Nanosecond) // another id
		}
		synctest.Wait()
		if n := l.reached.Load(); n != 2 {
			t.Errorf("%d starts at one time, want 2", n)
		}
		close(l.unblock)
		wg.Wait()
		if n := l.reached.Load(); n != 5 {
			t.Errorf("%d starts in all, want 5", n)
		}
	})
}
