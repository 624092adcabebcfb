package exec

import (
	"fmt"
	"maps"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/builtin/isolated"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// envProbe is set in a copy of this program that makes system calls in a task. Its value is a directory for
// files, or an id.
const envProbe = "NOMAD_LITE_TEST_PROBE"

func probe(value string) {
	if id, err := strconv.Atoi(value); err == nil {
		probeIDs(id)
		return
	}
	unix.Umask(0)
	for _, name := range slices.Sorted(maps.Keys(setModeWays)) {
		for _, mode := range []uint32{0o4755, 0o2755, 0o6000, 0o1700} {
			path := filepath.Join(value, fmt.Sprintf("%s-%o", name, mode))
			err := setModeWays[name](path, mode)
			var st unix.Stat_t
			if unix.Stat(path, &st) == nil && st.Mode&^unix.S_IFMT == mode {
				err = nil
			} else if err == nil {
				err = unix.EINVAL
			}
			fmt.Printf("%s %o: %v\n", name, mode, err)
		}
	}
	var params [120]byte // struct io_uring_params
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	fmt.Println("io_uring:", errno)
}

// setModeWays are the ways to make a file with a mode.
var setModeWays = map[string]func(path string, mode uint32) error{
	"fchmod": existing(func(path string, mode uint32) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fchmod(int(f.Fd()), mode)
	}),
	"fchmodat": existing(func(path string, mode uint32) error { return unix.Fchmodat(unix.AT_FDCWD, path, mode, 0) }),
	"fchmodat2": existing(func(path string, mode uint32) error {
		return unix.Fchmodat(unix.AT_FDCWD, path, mode, unix.AT_SYMLINK_NOFOLLOW)
	}),
	"mknodat": func(path string, mode uint32) error { return unix.Mknodat(unix.AT_FDCWD, path, unix.S_IFREG|mode, 0) },
	"openat": func(path string, mode uint32) error {
		return closed(unix.Openat(unix.AT_FDCWD, path, unix.O_CREAT|unix.O_WRONLY, mode))
	},
	"openat2": func(path string, mode uint32) error {
		return closed(unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: uint64(mode)}))
	},
	"O_TMPFILE": func(path string, mode uint32) error {
		fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_WRONLY, mode)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	},
}

func init() {
	if runtime.GOARCH != "amd64" {
		return // it does not have the calls of these numbers
	}
	for name, call := range map[string]struct {
		number  uintptr
		between []uintptr // arguments between the path and the mode
		kind    uint32
	}{"open": {2, []uintptr{unix.O_CREAT | unix.O_WRONLY}, 0}, "creat": {85, nil, 0}, "mknod": {133, nil, unix.S_IFREG}, "chmod": {90, nil, 0}} {
		way := func(path string, mode uint32) error {
			text, err := unix.BytePtrFromString(path)
			if err != nil {
				return err
			}
			arguments := append(call.between, uintptr(call.kind|mode), 0)
			fd, _, errno := unix.Syscall(call.number, uintptr(unsafe.Pointer(text)), arguments[0], arguments[1])
			if errno != 0 {
				return errno
			}
			if fd != 0 {
				return unix.Close(int(fd))
			}
			return nil
		}
		if name == "chmod" {
			way = existing(way)
		}
		setModeWays[name] = way
	}
}

func existing(change func(path string, mode uint32) error) func(string, uint32) error {
	return func(path string, mode uint32) error {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return change(path, mode)
	}
}

func closed(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// probeIDs prints by which calls this thread gets an id. The calls apply to a thread.
func probeIDs(id int) {
	const same = ^uintptr(0)
	n := uintptr(id)
	for _, call := range []struct {
		name      string
		number    uintptr
		arguments [3]uintptr
	}{
		{"setuid", unix.SYS_SETUID, [3]uintptr{n}},
		{"setreuid", unix.SYS_SETREUID, [3]uintptr{same, n}},
		{"setresuid", unix.SYS_SETRESUID, [3]uintptr{same, same, n}},
		{"setfsuid", unix.SYS_SETFSUID, [3]uintptr{n}},
		{"setgid", unix.SYS_SETGID, [3]uintptr{n}},
		{"setregid", unix.SYS_SETREGID, [3]uintptr{n, same}},
		{"setresgid", unix.SYS_SETRESGID, [3]uintptr{same, n, same}},
		{"setfsgid", unix.SYS_SETFSGID, [3]uintptr{n}},
	} {
		status := make(chan []byte)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			unix.RawSyscall(call.number, call.arguments[0], call.arguments[1], call.arguments[2])
			text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", unix.Gettid()))
			if err != nil {
				fmt.Println(err)
			}
			status <- text
		}()
		kind := "\nUid:"
		if strings.Contains(call.name, "gid") {
			kind = "\nGid:"
		}
		_, rest, _ := strings.Cut(string(<-status), kind)
		line, _, _ := strings.Cut(rest, "\n")
		fmt.Println(call.name, slices.Contains(strings.Fields(line), strconv.Itoa(id)))
	}
	groups := []uint32{uint32(id)}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&groups[0])), 0)
	fmt.Println("setgroups", errno == 0)
	_, _, errno = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
	fmt.Println("setgroups of none", errno == 0)
}

// copyProgram returns a copy of this program that all users can execute.
func copyProgram(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	processtest.OpenDirs(t, filepath.Dir(path))
	return path
}

// runProbe runs the program in a task, and returns what it prints.
func runProbe(t *testing.T, d *Driver, config map[string]any, program, user, value string) string {
	t.Helper()
	return runScript(t, d, config, func(s *sdk.StartRequest) {
		s.User = user
		s.Mounts = append(s.Mounts, driver.Mount{TaskPath: "/probe", HostPath: program})
		s.Env[envProbe] = value
	}, "/probe")
}

// No system call gives a file a set-user-ID or set-group-ID bit, for any user, unless the operator allows it.
func TestSetIDBits(t *testing.T) {
	if testing.Short() {
		t.Skip("starts tasks, for a second")
	}
	program := copyProgram(t)
	// In the directory of the test, the control is made by this user.
	control := osexec.Command(program)
	control.Env = []string{envProbe + "=" + t.TempDir()}
	out, err := control.Output()
	if err != nil {
		t.Fatal(err)
	}
	without := linesWithout(string(out), "io_uring")
	want := map[string]string{}
	for _, line := range without {
		name, _, _ := strings.Cut(line, " ")
		switch {
		case !strings.HasSuffix(line, ": <nil>"):
			t.Logf("this machine does not have the call: %s", line)
			want[line] = line
		case name == "openat2":
			want[line] = strings.Replace(line, "<nil>", "function not implemented", 1)
		case strings.Contains(line, " 1700:"):
			want[line] = line
		default:
			want[line] = strings.Replace(line, "<nil>", "operation not permitted", 1)
		}
	}
	if len(want) < 7*4 {
		t.Fatalf("the program prints %q", out)
	}
	users := []string{""}
	if os.Geteuid() == 0 {
		users = []string{"nobody", "root"}
	}
	for _, user := range users {
		t.Run(user, func(t *testing.T) {
			got := runProbe(t, &Driver{}, nil, program, user, "/local")
			lines := linesWithout(got, "io_uring")
			if len(lines) != len(without) {
				t.Fatalf("the program prints %q in a task", got)
			}
			for i, line := range without {
				if lines[i] != want[line] {
					t.Errorf("got %q, want %q", lines[i], want[line])
				}
			}
			if !strings.Contains(got, "io_uring: operation not permitted") {
				t.Errorf("io_uring is not denied: %q", got)
			}
			got = runProbe(t, newDriver(t, isolated.Config{AllowSetuidSetgidBits: true}), nil, program, user, "/local")
			if lines := linesWithout(got, "io_uring"); !slices.Equal(lines, without) {
				t.Errorf("with allow_setid_bits: %q, want %q", lines, without)
			}
		})
	}
}

func linesWithout(text, prefix string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, prefix) })
}

// A task with the capabilities to change its ids takes those that the operator does not deny.
func TestSetIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts tasks, for a second")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: without it no task has capabilities")
	}
	program := copyProgram(t)
	caps := []string{"setuid", "setgid"}
	add := map[string]any{"cap_add": []any{"setuid", "setgid"}}
	denied := hostprocess.Config{DeniedUIDRanges: "1-999,4000", DeniedGIDRanges: "4000-4010"}
	const (
		all  = "setuid %[1]t\nsetreuid %[1]t\nsetresuid %[1]t\nsetfsuid %[1]t\nsetgid %[1]t\nsetregid %[1]t\nsetresgid %[1]t\nsetfsgid %[1]t\n"
		none = "setgroups false\nsetgroups of none true\n"
	)
	for _, test := range []struct {
		name   string
		config isolated.Config
		task   map[string]any
		user   string
		id     int
		want   string
	}{
		{"an id that is denied", isolated.Config{Config: denied, AllowCaps: caps}, add, "nobody", 4000, fmt.Sprintf(all, false) + none},
		{"to root", isolated.Config{Config: denied, AllowCaps: caps}, nil, "root", 4000, fmt.Sprintf(all, false) + none},
		{"root", isolated.Config{AllowCaps: caps}, add, "nobody", 0, fmt.Sprintf(all, false) + none},
		{"another id", isolated.Config{Config: denied, AllowCaps: caps}, add, "nobody", 4999, fmt.Sprintf(all, true) + none},
		{"root, which is not denied", isolated.Config{AllowCaps: caps, DeniedUsers: []string{}}, add, "nobody", 0, fmt.Sprintf(all, true) + "setgroups true\nsetgroups of none true\n"},
		{"without the capabilities", isolated.Config{}, nil, "root", 4999, fmt.Sprintf(all, false) + "setgroups false\nsetgroups of none false\n"},
		{"of which none can be added", isolated.Config{}, add, "nobody", 4999, "cap_add: driver does not allow the following capabilities: setgid, setuid; the operator must name them in allow_caps of the driver"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := runProbe(t, newDriver(t, test.config), test.task, program, test.user, strconv.Itoa(test.id)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// A task in the PID namespace of the host has no right on the processes of others, also not on those that have
// fewer capabilities than tasks can have, unless the operator and the job name the capability for it.
func TestHostPIDNamespace(t *testing.T) {
	if testing.Short() {
		t.Skip("starts tasks, for a second")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: without it the mode is refused")
	}
	dir := t.TempDir()
	processtest.OpenDirs(t, dir)
	canary := filepath.Join(dir, "canary")
	if err := os.WriteFile(canary, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	helper := osexec.Command("setpriv", "--bounding-set=-all", "--inh-caps=-all", "sleep", "1000") // of root
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		helper.Process.Kill()
		if err := helper.Wait(); err != nil && !strings.Contains(err.Error(), "killed") {
			t.Error(err)
		}
	})
	waitExec(t, helper.Process.Pid, "sleep")
	attacks := map[string]string{
		"see":       "test -e /proc/$PID/stat",
		"signal":    "kill -0 $PID",
		"root":      "cat /proc/$PID/root$CANARY",
		"memory":    "exec 3</proc/$PID/mem",
		"files":     "readlink /proc/$PID/fd/0",
		"variables": "head -c 1 /proc/$PID/environ",
		"trace":     "nsenter --target $PID --mount true",
	}
	all := []string{"see", "signal", "root", "memory", "files", "variables"}
	run := func(t *testing.T, c isolated.Config, task map[string]any, user string, pid int) string {
		script := "exec 2>/dev/null\n"
		for _, name := range slices.Sorted(maps.Keys(attacks)) {
			script += "(" + attacks[name] + ") >/dev/null && echo " + name + "\n"
		}
		return runScript(t, newDriver(t, c), task, func(s *sdk.StartRequest) {
			s.User = user
			s.Env["PID"], s.Env["CANARY"] = strconv.Itoa(pid), canary
		}, script)
	}
	everything := []string{"all"}
	host := map[string]any{"pid_mode": "host"}
	hostAll := map[string]any{"pid_mode": "host", "cap_add": []any{"all"}}
	for _, test := range []struct {
		name   string
		config isolated.Config
		task   map[string]any
		user   string
		pid    int
		want   []string
	}{
		{"a user", isolated.Config{AllowHostPIDMode: true}, host, "nobody", helper.Process.Pid, []string{"see"}},
		{"by the operator's default", isolated.Config{DefaultPIDMode: "host"}, nil, "nobody", helper.Process.Pid, []string{"see"}},
		{"with all capabilities", isolated.Config{AllowHostPIDMode: true, AllowCaps: everything}, hostAll, "nobody", helper.Process.Pid, []string{"see"}},
		{"root, on a process with more capabilities", isolated.Config{AllowHostPIDMode: true, AllowHostModesForRoot: true, AllowCaps: everything}, hostAll, "root", os.Getpid(), []string{"see", "signal"}},
		{"the capability to signal", isolated.Config{AllowHostPIDMode: true, AllowCaps: []string{"kill"}}, map[string]any{"pid_mode": "host", "cap_add": []any{"kill"}}, "nobody", helper.Process.Pid, []string{"see", "signal"}},
		{"the capability to trace", isolated.Config{AllowHostPIDMode: true, AllowCaps: []string{"kill", "sys_ptrace", "dac_override"}},
			map[string]any{"pid_mode": "host", "cap_add": []any{"kill", "sys_ptrace", "dac_override"}}, "nobody", helper.Process.Pid, all},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := strings.Fields(run(t, test.config, test.task, test.user, test.pid))
			slices.Sort(got)
			if slices.Sort(test.want); !slices.Equal(got, test.want) {
				t.Errorf("the task can %q, want %q", got, test.want)
			}
		})
	}
	for want, test := range map[string]struct {
		config isolated.Config
		task   map[string]any
		user   string
	}{
		`pid_mode = "host" is refused: `:                      {isolated.Config{}, host, "nobody"},
		`pid_mode = "host" is refused for a task of root: `:   {isolated.Config{AllowHostPIDMode: true}, host, "root"},
		`cap_add: driver does not allow the following capabi`: {isolated.Config{AllowHostPIDMode: true, AllowCaps: everything}, map[string]any{"pid_mode": "host", "cap_add": []any{"kill"}}, "nobody"},
	} {
		if got := run(t, test.config, test.task, test.user, os.Getpid()); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// waitExec waits until the process executes the program.
func waitExec(t *testing.T, pid int, program string) {
	t.Helper()
	for {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(comm)) == program {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
