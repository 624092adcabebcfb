package allocrunner

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/nomad-lite/nomad-lite/internal/racedetector"
)

// The garbage collector halves a stack if less than a quarter is in use. It counts another 800 bytes as used, for
// functions without a stack check. The test runs itself in a process that prints all goroutines' frames with their
// addresses.
func TestStacksOfRunningAllocationShrinkTo4KB(t *testing.T) {
	if racedetector.Slowdown > 1 {
		t.Skip("the race detector makes frames larger")
	}
	const childEnvVar = "ALLOCRUNNER_TEST_STACK_CHILD"
	if os.Getenv(childEnvVar) != "" {
		synctest.Test(t, func(t *testing.T) {
			startHarness(t, parseJob(t, job("service", `task "web" {
				driver = "fake"
				config { run_for = "1h" }
			}`)), nil)
			synctest.Wait()
			if err := syscall.Kill(os.Getpid(), syscall.SIGQUIT); err != nil {
				t.Fatal(err)
			}
			_ = syscall.Pause() // unlike select {}, it keeps the bubble's clock from advancing
		})
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), childEnvVar+"=1", "GOTRACEBACK=system", "TMPDIR="+t.TempDir())
	if os.Geteuid() == 0 {
		child.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // its tasks' mounts end with it
	}
	traceback, err := child.CombinedOutput()
	if err == nil {
		t.Fatalf("the process has not printed its goroutines: %s", traceback)
	}
	const (
		withoutStackCheck = 800
		callersInAgent    = 136 // frames that call Run
		limit             = 8<<10/4 - withoutStackCheck - callersInAgent
	)
	for _, function := range []string{"allocrunner.(*Runner).Run", "taskrunner.(*Runner).Run"} {
		if size := stackSizeUpTo(t, string(traceback), function); size >= limit {
			t.Errorf("the stack of %s has %d bytes, want less than %d", function, size, limit)
		}
	}
}

var frameAddresses = regexp.MustCompile(`fp=0x([0-9a-f]+) sp=0x([0-9a-f]+)`)

// stackSizeUpTo returns the frame size of a function and the functions it has called, in the goroutine that executes it.
func stackSizeUpTo(t *testing.T, traceback, function string) int {
	t.Helper()
	for goroutine := range strings.SplitSeq(traceback, "\n\n") {
		at := strings.Index(goroutine, function+"(")
		if at < 0 {
			continue
		}
		newest, frame := frameAddresses.FindStringSubmatch(goroutine), frameAddresses.FindStringSubmatch(goroutine[at:])
		if newest == nil || frame == nil {
			t.Fatalf("no addresses in\n%s", goroutine)
		}
		sp, spErr := strconv.ParseUint(newest[2], 16, 64)
		fp, fpErr := strconv.ParseUint(frame[1], 16, 64)
		if spErr != nil || fpErr != nil {
			t.Fatalf("addresses that are too large in\n%s", goroutine)
		}
		return int(fp - sp)
	}
	t.Fatalf("no goroutine executes %s:\n%s", function, traceback)
	return 0
}
