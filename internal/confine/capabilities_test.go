package confine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A thread of root that keeps only CAP_CHOWN cannot open a 0600 file of another user, but
// can change the owner of a file. The other threads of the process keep all capabilities.
func TestKeepCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which has capabilities")
	}
	dir := t.TempDir()
	otherUserFile, rootFile := filepath.Join(dir, "closed"), filepath.Join(dir, "own")
	for _, path := range []string{otherUserFile, rootFile} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(otherUserFile, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	type capabilityChecks struct{ drop, closed, own, chown error }
	results := make(chan capabilityChecks)
	go func() {
		runtime.LockOSThread() // the locked thread exits with the goroutine
		r := capabilityChecks{drop: KeepCapabilities(unix.CAP_CHOWN)}
		_, r.closed = os.ReadFile(otherUserFile)
		_, r.own = os.ReadFile(rootFile)
		r.chown = os.Chown(rootFile, 12345, 12345)
		results <- r
	}()
	if r := <-results; r.drop != nil || !errors.Is(r.closed, os.ErrPermission) || r.own != nil || r.chown != nil {
		t.Errorf("on the thread: %v, a file of another user: %v, one of root: %v, its owner: %v", r.drop, r.closed, r.own, r.chown)
	}
	if _, err := os.ReadFile(otherUserFile); err != nil {
		t.Errorf("the process has lost its capabilities: %v", err)
	}
}

// keepChownAndPrintCaps keeps one capability, and prints the capabilities of its threads and of a
// child.
func keepChownAndPrintCaps() int {
	if err := KeepProcessCapabilities(unix.CAP_CHOWN); err != nil {
		fmt.Println(err)
		return 1
	}
	threads, err := filepath.Glob("/proc/self/task/*/status")
	for _, path := range append(threads, "program") {
		status, readErr := os.ReadFile(path)
		if path == "program" {
			status, readErr = exec.Command("cat", "/proc/self/status").Output()
		}
		if err = errors.Join(err, readErr); err != nil {
			fmt.Println(err)
			return 1
		}
		for line := range bytes.Lines(status) {
			if bytes.HasPrefix(line, []byte("Cap")) {
				fmt.Printf("%s", line)
			}
		}
	}
	return 0
}

// Neither another thread nor a program that the process starts has more than the kept
// capabilities and CAP_BLOCK_SUSPEND.
func TestKeepProcessCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which has capabilities")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "keep")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	one := fmt.Appendf(nil, "CapInh:\t%016x\nCapPrm:\t%016[2]x\nCapEff:\t%016[2]x\nCapBnd:\t%016[2]x\nCapAmb:\t%016[1]x\n", 0, 1<<unix.CAP_CHOWN|1<<unix.CAP_BLOCK_SUSPEND)
	if n := bytes.Count(out, one); n < 3 || n*len(one) != len(out) {
		t.Errorf("not each thread and program has CAP_CHOWN and CAP_BLOCK_SUSPEND alone:\n%s", out)
	}
}
