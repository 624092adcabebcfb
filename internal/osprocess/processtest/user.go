package processtest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// RunAsUser runs the tests of this test program that match the pattern as an ordinary user, and returns their
// output. The test fails if they fail, and is skipped if this process is not root. The user has a home and a
// directory for temporary files, and can read the directories above them. This process reaps the orphans of the tests,
// so a test that calls RunAsUser must not run in parallel with others.
func RunAsUser(t *testing.T, uid uint32, pattern string) []byte {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the tests run as an ordinary user already")
	}
	dir := t.TempDir()
	OpenDirs(t, dir)
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(tmp, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, filepath.Base(os.Args[0]))
	if err := copyTestProgram(program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run="+pattern, "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := runAndReap(cmd); err != nil {
		t.Errorf("%v\n%s", err, out.Bytes())
	}
	return out.Bytes()
}

// runAndReap runs a command, and reaps its orphans. The init process of some containers reaps orphans only every two
// seconds, and the first process of a PID namespace exits only when all processes of the namespace are reaped.
func runAndReap(cmd *exec.Cmd) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	exits := make(chan os.Signal, 1)
	signal.Notify(exits, unix.SIGCHLD)
	if err := cmd.Start(); err != nil {
		return err
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		for range exits {
			for _, pid := range children() {
				if pid != cmd.Process.Pid {
					_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // an orphan that runs is reaped later
				}
			}
		}
	}()
	err := cmd.Wait()
	signal.Stop(exits)
	close(exits)
	<-reaped
	return err
}

// children returns the pids of the children of this process. Package osprocess, which can list them, imports this package
// in its tests.
func children() (pids []int) {
	paths, _ := filepath.Glob("/proc/self/task/*/children") // fails for a malformed pattern only
	for _, path := range paths {
		text, _ := os.ReadFile(path) // fails if the thread has ended
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// OpenDirs lets every user pass through a directory of the test, and the directories above it.
func OpenDirs(t testing.TB, dir string) {
	t.Helper()
	for ; dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func copyTestProgram(to string) error {
	// The lock prevents concurrent forks: a child would inherit the file while it is open for writing, and
	// executing the file would fail with ETXTBSY until the child executes its own program.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
