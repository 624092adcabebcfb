package docker

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The pause program of each architecture reaps orphans as process 1, and exits on SIGTERM. A
// program of another architecture runs in an emulator.
func TestPauseProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a pid namespace needs root")
	}
	emulators := map[string]string{"amd64": "qemu-x86_64", "arm64": "qemu-aarch64"}
	for _, arch := range slices.Sorted(maps.Keys(pauseCode)) {
		t.Run(arch, func(t *testing.T) {
			program, err := buildPauseELF(arch)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "pause")
			if err := os.WriteFile(path, program, 0o755); err != nil {
				t.Fatal(err)
			}
			command := []string{path}
			if arch != runtime.GOARCH {
				emulator, err := exec.LookPath(emulators[arch])
				if err != nil && os.Getenv("NOMAD_LITE_CI") != "" {
					t.Fatalf("install qemu-user: %v", err)
				} else if err != nil {
					t.Skipf("install qemu-user: %v", err)
				}
				// The emulator blocks signals of its program only while it handles one, and the kernel
				// discards SIGCHLD that is not blocked.
				command = []string{"/usr/bin/env", "--block-signal=CHLD", emulator, path}
			}
			checkPauseProgram(t, command)
		})
	}
	if _, err := buildPauseELF("riscv64"); err == nil || !strings.Contains(err.Error(), "infra_image") {
		t.Errorf("an architecture without a program: %v", err)
	}
}

func checkPauseProgram(t *testing.T, command []string) {
	pause := exec.Command(command[0], command[1:]...)
	pause.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := pause.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- pause.Wait() }()
	t.Cleanup(func() { pause.Process.Kill() })

	// The shell exits before its children, which run until the pipe is closed.
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	pid := pause.Process.Pid
	shell := exec.Command("nsenter", "--target", fmt.Sprint(pid), "--pid", "sh", "-c", "for i in 1 2 3; do cat <&3 >/dev/null 2>&1 & done")
	shell.ExtraFiles = []*os.File{reader}
	out, err := shell.CombinedOutput()
	reader.Close()
	if err != nil {
		t.Fatalf("nsenter: %v: %s", err, out)
	}
	if n := countChildren(t, pid); n != 3 {
		t.Errorf("the program has %d orphans as children, want 3", n)
	}
	writer.Close()
	for deadline := time.Now().Add(20 * time.Second); countChildren(t, pid) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the program does not reap its children")
		}
	}
	if err := pause.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-exited:
		if err != nil {
			t.Errorf("after SIGTERM: %v, want exit code 0", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the program continues after SIGTERM")
	}
}

func countChildren(t *testing.T, pid int) int {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("the program has exited: %v", err)
	}
	n := 0
	for _, thread := range threads { // an emulator has several
		children, err := os.ReadFile(thread)
		if err != nil {
			t.Fatal(err)
		}
		n += len(strings.Fields(string(children)))
	}
	return n
}
