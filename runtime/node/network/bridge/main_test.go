package bridge

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const isolatedVariable = "NOMAD_LITE_BRIDGE_TEST_ISOLATED"

// TestMain starts the test binary again in its own network, as root: the tests change neither the
// machine's interfaces and rules nor its /run.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("only root can create bridges: tests skipped")
		return
	}
	if os.Getenv(isolatedVariable) == "" {
		os.Exit(runIsolated())
	}
	if prefix := os.Getenv(attachingVariable); prefix != "" {
		os.Exit(attachAsAgent(prefix))
	}
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
		setUpMachine(),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the network of the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func runIsolated() int {
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), isolatedVariable+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := again.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
