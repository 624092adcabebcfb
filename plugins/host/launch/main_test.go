package launch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "test-plugin" {
		runMisbehavingPlugin(os.Args[2])
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "test-keeper" {
		if err := keeperserver.Serve(context.Background(), keeperwire.ProtocolVersion); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Most tests wait for processes and use no CPU time.
	_ = flag.Set("test.parallel", "8")
	code := m.Run()
	if detached := leftovers(); code == 0 && detached != "" {
		fmt.Fprintln(os.Stderr, "left behind:\n"+detached)
		code = 1
	}
	os.Exit(code)
}

// testRunEnv is an environment variable that all processes of these tests inherit.
var testRunEnv = fmt.Sprintf("LAUNCH_TEST=%d.%d", os.Getpid(), time.Now().UnixNano())

// leftovers waits for the processes and goroutines of the tests to end, and describes the ones
// that still run.
func leftovers() string {
	var leftoverReport string
	for range 100 {
		leftoverReport = ""
		buf := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "leftovers") {
				continue
			}
			for _, ours := range []string{"nomad-lite/plugins", "go-plugin", "google.golang.org/grpc"} {
				if strings.Contains(g, ours) {
					leftoverReport += g + "\n\n"
					break
				}
			}
		}
		// The processes are found by their environment, because orphans are not children of
		// the test process.
		procs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, proc := range procs {
			if env, _ := os.ReadFile(proc); strings.Contains(string(env), testRunEnv) {
				leftoverReport += proc + "\n"
			}
		}
		if leftoverReport == "" {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
	return leftoverReport
}

// inProcessKeeper is a Keeper that starts its children from the test process.
type inProcessKeeper struct {
	mu         sync.Mutex
	children   map[osprocess.ID]*keeperChild
	storedFDs  map[string]*os.File
	spawnCount int
}

type keeperChild struct {
	done   chan struct{}
	status osprocess.ExitStatus
}

func newInProcessKeeper(t testing.TB) *inProcessKeeper {
	d := &inProcessKeeper{children: map[osprocess.ID]*keeperChild{}, storedFDs: map[string]*os.File{}}
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for key := range d.storedFDs {
			t.Errorf("the keeper still holds %s", key)
		}
	})
	return d
}

func (i *inProcessKeeper) KeepProcessAfterDisconnect(context.Context, osprocess.ID) error { return nil }

func (i *inProcessKeeper) Spawn(_ context.Context, c keeper.Command) (osprocess.ID, error) {
	path := c.Path
	if c.Executable != nil {
		path = "/proc/self/fd/" + strconv.Itoa(int(c.Executable.Fd()))
	}
	cmd := &exec.Cmd{Path: path, Args: c.Args, Env: c.Env, Dir: c.Dir, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	// Stdout is assigned only if it is not nil: an interface that contains a nil *os.File
	// is not nil, and only a nil interface means /dev/null.
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	if c.Stderr != nil {
		cmd.Stderr = c.Stderr
	}
	if err := cmd.Start(); err != nil {
		return osprocess.ID{}, err
	}
	p, err := osprocess.LookupID(cmd.Process.Pid)
	if err != nil {
		return osprocess.ID{}, err
	}
	k := &keeperChild{done: make(chan struct{})}
	i.mu.Lock()
	i.children[p] = k
	i.spawnCount++
	i.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if ws.Signaled() {
			k.status.Signal = int(ws.Signal())
		} else {
			k.status.ExitCode = ws.ExitStatus()
		}
		close(k.done)
	}()
	return p, nil
}

func (i *inProcessKeeper) Wait(ctx context.Context, p osprocess.ID) (osprocess.ExitStatus, error) {
	i.mu.Lock()
	k := i.children[p]
	i.mu.Unlock()
	if k == nil {
		return osprocess.ExitStatus{}, keeper.ErrExitStatusUnknown
	}
	select {
	case <-k.done:
		return k.status, nil
	case <-ctx.Done():
		return osprocess.ExitStatus{}, ctx.Err()
	}
}

func (i *inProcessKeeper) StoreFDDrainedWithoutAgent(_ context.Context, key string, f *os.File) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	// os.File.Fd has cleared O_NONBLOCK of the open file.
	if err := syscall.SetNonblock(fd, true); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.storedFDs[key] = os.NewFile(uintptr(fd), key)
	return nil
}

func (i *inProcessKeeper) DuplicateStoredFD(key string) (*os.File, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := i.storedFDs[key]
	if f == nil {
		return nil, keeper.ErrFDNotStored
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), key), nil
}

func (i *inProcessKeeper) SameExecutable(_ context.Context, p osprocess.ID, file *os.File) (bool, error) {
	return p.SameExecutable(file)
}

func (i *inProcessKeeper) RemoveFD(_ context.Context, key string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if f := i.storedFDs[key]; f != nil {
		delete(i.storedFDs, key)
		return f.Close()
	}
	return nil
}

// dyingKeeper is a keeper whose first Spawn starts the child and then fails as if the
// keeper had died.
type dyingKeeper struct {
	*inProcessKeeper
	// socketDir: Spawn fails when the plugin has created a socket in this directory; empty
	// means immediately.
	socketDir  string
	dieOnce    sync.Once
	firstChild osprocess.ID
}

func (d *dyingKeeper) Spawn(ctx context.Context, c keeper.Command) (osprocess.ID, error) {
	err := errors.New("")
	d.dieOnce.Do(func() {
		if d.firstChild, err = d.inProcessKeeper.Spawn(ctx, c); err == nil {
			err = fmt.Errorf("spawn: %w", keeper.ErrKeeperDied)
		}
		for deadline := time.Now().Add(10 * time.Second); d.socketDir != "" && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			entries, _ := os.ReadDir(d.socketDir)
			if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Type()&os.ModeSocket != 0 }) {
				break
			}
		}
	})
	if errors.Is(err, keeper.ErrKeeperDied) {
		return osprocess.ID{}, err
	}
	return d.inProcessKeeper.Spawn(ctx, c)
}
