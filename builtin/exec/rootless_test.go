package exec

import (
	"bytes"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// userID is an ordinary user, whose tests this test program runs.
const userID = 54321

// runAsUser runs tests of this program as an ordinary user. The cases must not all be skipped.
func runAsUser(t *testing.T, pattern string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the tests run as an ordinary user already")
	}
	dir := t.TempDir()
	openParents(t, dir)
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(tmp, userID, userID); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "exec.test")
	if err := copyTestBinary(program); err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command(program, "-test.run="+pattern, "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userID, Gid: userID}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("    --- PASS: ")) {
		t.Errorf("no case has passed:\n%s", out)
	}
}

func copyTestBinary(to string) error {
	// The lock prevents concurrent forks: a child that inherits the file while it is open for
	// writing makes its execution fail with ETXTBSY.
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
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

func TestContractRootless(t *testing.T) { runAsUser(t, "^TestContract$") }

var _ = fmt.Sprint
