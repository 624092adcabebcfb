package hostile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agent"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/confine"
)

// traceAttacks are the ways to another process's memory, descriptors and root directory. Each returns nil if the
// kernel has permitted the access.
var traceAttacks = map[string]func(pid int) error{
	"PTRACE_SEIZE":         func(pid int) error { return ptrace(unix.PTRACE_SEIZE, pid) },
	"PTRACE_ATTACH":        func(pid int) error { return ptrace(unix.PTRACE_ATTACH, pid) },
	"process_vm_readv":     func(pid int) error { return accessMemory(pid, unix.SYS_PROCESS_VM_READV) },
	"process_vm_writev":    func(pid int) error { return accessMemory(pid, unix.SYS_PROCESS_VM_WRITEV) },
	"pidfd_getfd":          stealDescriptor,
	"kcmp":                 compareDescriptor,
	"enter the namespaces": enterNamespaces,
}

func init() {
	for _, name := range []string{"root", "cwd", "exe", "fd/1", "fd/2", "ns/mnt"} {
		traceAttacks["follow "+name] = func(pid int) error { return openInProc(pid, name, unix.O_PATH) }
	}
	for _, name := range []string{"environ", "maps", "smaps", "auxv", "mem", "pagemap"} {
		traceAttacks["open "+name] = func(pid int) error { return openInProc(pid, name, unix.O_RDONLY) }
	}
	traceAttacks["write mem"] = func(pid int) error { return openInProc(pid, "mem", unix.O_RDWR) }
}

func ptrace(request uintptr, pid int) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, request, uintptr(pid), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	if request == unix.PTRACE_SEIZE {
		_ = unix.PtraceInterrupt(pid) // only a process that has stopped can be released
	}
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	err := unix.PtraceDetach(pid)
	// Another signal can have stopped the process before SIGSTOP did, which would stop it after the release, for good.
	_ = unix.Kill(pid, unix.SIGCONT)
	return err
}

// accessMemory accesses an address without memory: only a process that may trace gets the error of the address.
func accessMemory(pid int, number uintptr) error {
	var b [1]byte
	local := unix.Iovec{Base: &b[0], Len: 1}
	remote := unix.RemoteIovec{Base: 0, Len: 1}
	_, _, errno := unix.Syscall6(number, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if errno == unix.EFAULT {
		return nil
	}
	return errno
}

func stealDescriptor(pid int) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(handle)
	fd, err := unix.PidfdGetfd(handle, 0, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func compareDescriptor(pid int) error {
	const kcmpFile = 0
	if _, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), kcmpFile, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func enterNamespaces(pid int) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(handle)
	return unix.Setns(handle, unix.CLONE_NEWUTS|unix.CLONE_NEWIPC)
}

func openInProc(pid int, name string, flags int) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", pid, name), flags|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// tracingCapabilities are the capabilities that permit an attack: with the last two the kernel shows the files of the memory map
// and the environment of every process.
var tracingCapabilities = []uint{unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}

// dropTracing removes tracingCapabilities from the calling thread and from the programs that it starts. The caller has
// locked the thread.
func dropTracing() error {
	var kept []uint
	for c := range uint(unix.CAP_LAST_CAP + 1) {
		if !slices.Contains(tracingCapabilities, c) {
			kept = append(kept, c)
		} else if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return err
		}
	}
	return confine.KeepCapabilities(kept...)
}

// attackAsTask attacks a process from a thread of root that has all capabilities except tracingCapabilities, and so
// at least those of each task to which the operator has given none of them. It returns the attacks that the kernel has
// permitted, and an error if one has failed for another reason than a missing permission.
func attackAsTask(pid int) (permitted []string, err error) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so that it ends with the goroutine
		defer close(done)
		if err = dropTracing(); err != nil {
			return
		}
		for name, attack := range traceAttacks {
			switch attackErr := attack(pid); {
			case attackErr == nil:
				permitted = append(permitted, name)
			case !errors.Is(attackErr, unix.EPERM) && !errors.Is(attackErr, unix.EACCES):
				err = errors.Join(err, fmt.Errorf("%s: %w", name, attackErr))
			}
		}
	}()
	<-done
	slices.Sort(permitted)
	return permitted, err
}

// assertUntraceable asserts that a process withstands all attacks of a task.
func assertUntraceable(t *testing.T, name string, pid int) {
	t.Helper()
	if permitted, err := attackAsTask(pid); err != nil || len(permitted) > 0 {
		t.Errorf("%s: a task can %s: %v", name, strings.Join(permitted, ", "), err)
	}
}

// startWithoutTracing starts a process that has all capabilities except tracingCapabilities, and ends it with the test. Such
// a process can be traced by a process with the same capabilities, unless it is not dumpable.
func startWithoutTracing(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so that it ends with the goroutine
		err := dropTracing()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process can have exited
		_ = cmd.Wait()         // the status of a killed process is an error
	})
}

// Under an agent with the capabilities of a container, which has all those of its tasks and no others, no task can
// trace a process of the agent. The processes of tasks stay dumpable, and belong to their users in /proc.
func TestProcessesCannotBeTraced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the processes of an agent that is not root can be traced by its user")
	}
	runtime.LockOSThread() // the thread is never unlocked, so that it ends with the test
	if err := dropTracing(); err != nil {
		t.Fatal(err)
	}
	s := systemtest.StartTestAgent(t, false, "plugin \"script\" {\n  config {\n    commands = false\n  }\n}\n")
	s.RunJobUntilStatus("traced", "service", "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript, func(task *api.Task) {
		task.User = "nobody"
		task.Templates = []*api.Template{{EmbeddedTmpl: new("text"), DestPath: new("local/template")}}
		task.Meta = map[string]string{"lite_hook_script": `{"poststart": {"exec": ["true"]}}`}
	}))
	for _, name := range []string{"agent", "keeper", "log-collector", "plugin serve raw_exec", "plugin serve template", "template-launcher", "template-evaluator", "plugin serve script"} {
		pids := processesWithArgs("nomad-lite " + name)
		for deadline := time.Now().Add(5 * time.Second); len(pids) > 1 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond) // a child has the arguments of its parent until it executes a program
			pids = processesWithArgs("nomad-lite " + name)
		}
		if len(pids) != 1 {
			t.Errorf("processes of %q: %v", name, pids)
		}
		for _, pid := range pids {
			assertUntraceable(t, name, pid)
		}
	}
	assertDumpable(t, "/bin/sh -c trap")
}

// assertDumpable asserts that a process of the user nobody runs with these arguments, and is dumpable: the kernel gives its
// files in /proc to its user.
func assertDumpable(t *testing.T, args string) {
	t.Helper()
	var owners []uint32
	for _, pid := range processesWithArgs(args) {
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/environ", pid), &st); err != nil {
			t.Error(err)
		}
		owners = append(owners, st.Uid)
	}
	if !slices.Equal(owners, []uint32{nobodyUser}) {
		t.Errorf("owners of the processes %q: %v, want the task's user", args, owners)
	}
}

// The attacks succeed against a process that is dumpable.
func TestAttackAsTask(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which has capabilities")
	}
	cmd := exec.Command("sleep", "1000")
	startWithoutTracing(t, cmd)
	permitted, err := attackAsTask(cmd.Process.Pid)
	for _, name := range []string{"follow root", "open mem", "open environ", "write mem"} {
		if !slices.Contains(permitted, name) {
			t.Errorf("%q is not among the attacks that succeed, %q: %v", name, permitted, err)
		}
	}
}

// The short-lived helper processes of an agent cannot be traced either. They wait for their input here. Between their
// execution and their first instruction, only a capability that the attacker lacks protects them, and the attacker has
// all of theirs here, so the attacks are repeated until they fail.
func TestShortLivedHelpersCannotBeTraced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the processes of an agent that is not root can be traced by its user")
	}
	for name, c := range map[string]struct {
		env  string
		args []string
	}{
		"job parser": {"A=", []string{"nomad-lite", agent.JobParserCommand}},
		"stage":      {stage.EnvName + "=1", []string{stage.ProcessName}},
	} {
		t.Run(name, func(t *testing.T) {
			input, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer input.Close()
			defer writer.Close()
			cmd := exec.Command("nomad-lite")
			cmd.Args, cmd.Env, cmd.Stdin, cmd.ExtraFiles = c.args, append(os.Environ(), c.env), input, []*os.File{input, os.Stderr}
			startWithoutTracing(t, cmd)
			var permitted []string
			for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if permitted, err = attackAsTask(cmd.Process.Pid); err == nil && len(permitted) == 0 {
					return
				}
			}
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
			t.Errorf("a task can %s: %v\n%s", strings.Join(permitted, ", "), err, status)
		})
	}
}
