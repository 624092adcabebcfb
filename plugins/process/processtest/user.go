package processtest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// RunAsUser runs the tests of this test program that match the pattern as an ordinary user, and returns their
// output. The test fails if they fail, and is skipped if this process is not root. The user has a home and a
// directory for temporary files, and can read the directories above them.
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
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return out
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
