package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

func TestRemedy(t *testing.T) {
	for _, test := range []struct{ path, value, want string }{
		{"user/max_user_namespaces", "0\n", "root can allow them with sysctl -w user.max_user_namespaces=15000"},
		{"user/max_user_namespaces", "1000\n", "run the agent as root, or where "},
		{"kernel/unprivileged_userns_clone", "0\n", "root can allow them with sysctl -w kernel.unprivileged_userns_clone=1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1\n", "root can allow them with an AppArmor profile "},
		{"kernel/apparmor_restrict_unprivileged_userns", "0\n", "run the agent as root, or where "},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, test.path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(test.value), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := userNamespaceRemedy(dir); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s is %s: remedy %q, want %q", test.path, test.value, got, test.want)
		}
	}
}

// envForbidden is set in a test program that runs where user namespaces are forbidden.
const envForbidden = "NOMAD_LITE_TEST_USERNS_FORBIDDEN"

// Where the kernel forbids user namespaces, the fingerprint has the reason and the remedy.
func TestFingerprintWithoutUserNamespaces(t *testing.T) {
	if os.Getenv(envForbidden) != "" {
		f := Fingerprint("exec")
		if f.Health != driver.HealthUndetected {
			t.Errorf("health %v, want undetected", f.Health)
		}
		const want = "the agent is not root, and tasks cannot be isolated in a user namespace: no space left on device: root can allow them with sysctl -w user.max_user_namespaces=15000"
		if f.HealthDescription != want {
			t.Errorf("description %q, want %q", f.HealthDescription, want)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a machine without user namespaces")
	}
	program, err := os.Open("/proc/self/exe") // an ordinary user may have no path to it
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	// The setting applies to the user namespace of the shell, which has the users of the machine.
	script := `echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --reuid=54321 --regid=54321 --clear-groups /proc/self/fd/3 -test.run=^` + t.Name() + `$`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), envForbidden+"=1")
	cmd.ExtraFiles = []*os.File{program}
	ids := []syscall.SysProcIDMap{{Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}
