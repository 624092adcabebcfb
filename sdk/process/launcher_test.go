package process_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

// umaskLauncher is a Launcher of another package: its stage is this program, which sets the umask of the task and then
// executes the program of the task.
type umaskLauncher struct {
	waitingStages atomic.Int32 // stages that wait for their release
}

// stageName is the name of the program in the arguments of a stage. The other arguments are whether the stage waits for its
// release, and the program with its arguments.
const stageName = "umask-stage"

// File descriptors of the stage.
const (
	statusFD    = 3 // pipe to the launcher: an error of the stage, or closed by execve
	releaseFD   = 4 // pipe that ReleaseStage closes
	startMarkFD = 5
)

func (u *umaskLauncher) PrepareLaunch(p process.Program) (*process.Launch, error) {
	statusReader, statusWriter, err := os.Pipe()
	if err != nil {
		return nil, sdk.Recoverable(err)
	}
	files := []*os.File{statusReader, statusWriter}
	l := &process.Launch{
		Path:  "/proc/self/exe",
		Args:  append([]string{stageName, fmt.Sprint(p.StartMarkFile != nil), p.Path}, p.Args...),
		Env:   p.Env,
		Files: []*os.File{statusWriter},
		WaitForExec: func() error {
			statusWriter.Close()
			text, err := io.ReadAll(statusReader)
			if err == nil && len(text) > 0 {
				err = errors.New(string(text))
			}
			return err
		},
		Close: func() {
			for _, f := range files {
				f.Close()
			}
		},
	}
	if p.StartMarkFile != nil {
		u.waitingStages.Add(1)
		releaseReader, releaseWriter, err := os.Pipe()
		if err != nil {
			l.Close()
			return nil, sdk.Recoverable(err)
		}
		files = append(files, releaseReader, releaseWriter)
		l.Files = append(l.Files, releaseReader, p.StartMarkFile)
		l.ReleaseStage = func() { releaseWriter.Close() }
	}
	return l, nil
}

func (*umaskLauncher) OpenTerminal(*os.File) (master, slave *os.File, err error) {
	return nil, nil, errors.New("the umask launcher has no terminals")
}

// init runs the stage, before the tests.
func init() {
	if os.Args[0] != stageName {
		return
	}
	fmt.Fprint(os.NewFile(statusFD, "status"), runStage(os.Args[1] == "true", os.Args[2], os.Args[3:]))
	os.Exit(1)
}

// runStage returns only after an error.
func runStage(waitsForRelease bool, program string, args []string) error {
	unix.CloseOnExec(statusFD)
	if waitsForRelease {
		unix.CloseOnExec(releaseFD)
		unix.CloseOnExec(startMarkFD)
		if err := process.WaitForRelease(os.NewFile(releaseFD, "release"), os.NewFile(startMarkFD, "mark")); err != nil {
			return err
		}
	}
	syscall.Umask(0o027)
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	return syscall.Exec(path, append([]string{program}, args...), os.Environ())
}

func TestLauncherOfAnotherPackage(t *testing.T) {
	for name, test := range map[string]struct {
		keeperSocket      string
		wantWaitingStages int32
	}{
		"under a host without Adopt": {"", 0},
		"under a host with Adopt":    {"/nonexistent/keeper.sock", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NOMAD_LITE_KEEPER", test.keeperSocket)
			launcher := &umaskLauncher{}
			start := sdktest.NewStartRequest(t, sdk.DriverInfo{}, sdktest.StartOptions{})
			p, err := process.Start(t.Context(), start.StartRequest, process.Command{
				Path: "sh", Args: []string{"-c", "umask; exec sleep 3600"}, Launcher: launcher,
			})
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(20 * time.Second); start.Stdout() != "0027\n"; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the task has written %q and %q", start.Stdout(), start.Stderr())
				}
			}
			var out bytes.Buffer
			result, err := p.Exec(t.Context(), driver.Exec{Command: []string{"sh", "-c", "umask; exit 3"}, Stdout: &out})
			if err != nil || result.ExitCode != 3 || out.String() != "0027\n" {
				t.Errorf("a command: %+v, %v, output %q", result, err, out.String())
			}
			if err := p.Kill(t.Context()); err != nil {
				t.Error(err)
			}
			if result, err := p.Wait(t.Context()); err != nil || result.Signal != int(unix.SIGKILL) {
				t.Errorf("exit: %+v, %v", result, err)
			}
			if err := p.Destroy(t.Context()); err != nil {
				t.Error(err)
			}

			if got := launcher.waitingStages.Load(); got != test.wantWaitingStages {
				t.Errorf("%d stages waited for their release, want %d", got, test.wantWaitingStages)
			}

			failed := sdktest.NewStartRequest(t, sdk.DriverInfo{}, sdktest.StartOptions{})
			if _, err := process.Start(t.Context(), failed.StartRequest, process.Command{Path: "no-such-program", Launcher: launcher}); err == nil || !strings.Contains(err.Error(), "no-such-program") {
				t.Errorf("start of a program that does not exist: %v", err)
			}
		})
	}
}
