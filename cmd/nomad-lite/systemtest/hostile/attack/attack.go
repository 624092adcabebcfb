package attack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// TargetsEnvVar is the environment variable that contains the Targets of a probe, as JSON.
const TargetsEnvVar = "HOSTILE_TARGETS"

// Marker is part of each network frame that a probe sends with a source that is not its own.
const Marker = "nomad-lite-spoofed-frame"

// Targets are what a probe attacks.
type Targets struct {
	ProbeTaskName           string   // name of the task; the probe writes it into UnchangeableFile, and sends it to SocketPaths and TCPAddresses
	UnreadableFiles         []string // files that tasks must not read, by their paths on the machine
	UnchangeableFile        string   // file that tasks must not change, by its path on the machine
	SocketPaths             []string // paths of unix sockets; "@name" is an abstract one
	TCPAddresses            []string // IPv4 addresses with ports, such as "127.0.0.1:80"
	MountPoints             []string // paths in the task where something may be mounted
	WritableDirs            []string // directories that the task can write
	UnreachableCommandTexts []string // a process whose command line contains one of these texts must not be reachable
	NeighbourIPs            []string // IPv4 addresses of other programs in the network of the task
}

// These are the kinds of reports: the first word of a line. The comment of each names the values that follow on the line.
// Done is the last line of a complete report.
const (
	Identity  = "identity"  // field of /proc/self/status: values
	Namespace = "namespace" // name, inode number
	Shared    = "shared"    // peer group of a mount, the mounted directory
	Read      = "read"      // path, text
	Write     = "write"     // path
	Became    = "became"    // call, number
	Process   = "process"   // access to a process, its command line
	Device    = "device"    // path
	Connected = "connected" // address to which the task has connected
	Left      = "left"      // call that has given a file set-id bits, a capability, an owner or a device number; path of the file
	Call      = "call"      // system call that no filter can check
	Done      = "done"
)

type probe struct {
	Targets

	mu           sync.Mutex
	reportWriter io.Writer
}

// RunProbeMode runs a mode of the probe:
//
//	attack              all attacks
//	make DIR            makes links, FIFOs and sparse files in DIR, see HostileFiles
//	swap DIR            exchanges a directory and a link to the root directory in DIR, until it is killed
//	wait                waits until it is killed
//	listen KIND ADDRESS…  listens in the place of an agent, see RunListener
func RunProbeMode(args []string, out io.Writer) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM) // the kernel sends process 1 only signals that it handles
	go func() {
		<-signals
		os.Exit(0)
	}()
	unix.Umask(0)
	switch {
	case len(args) == 1 && args[0] == "attack":
		p := &probe{reportWriter: out}
		if err := json.Unmarshal([]byte(os.Getenv(TargetsEnvVar)), &p.Targets); err != nil {
			return fmt.Errorf("%s: %w", TargetsEnvVar, err)
		}
		p.runAllAttacks()
		return nil
	case len(args) == 2 && args[0] == "make":
		return makeHostileFiles(args[1])
	case len(args) == 2 && args[0] == "swap":
		return swapDirAndRootLinkRepeatedly(args[1])
	case len(args) > 2 && args[0] == "listen":
		return RunListener(args[1], args[2:], out)
	case len(args) == 1 && args[0] == "wait":
		select {}
	}
	return fmt.Errorf("unknown arguments %q", args)
}

func (p *probe) report(kind string, values ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strings.TrimSuffix(fmt.Sprintln(values...), "\n")
	fmt.Fprintf(p.reportWriter, "%s %s\n", kind, strings.ReplaceAll(text, "\n", " ")) // an error means that the test no longer reads
}

func (p *probe) runAllAttacks() {
	p.reportIdentity() // first, because the user's rights determine which later reports are breaches
	// MountPoints are attacked first, because a driver that detects a forbidden mount too late ends the task soon.
	for _, dir := range p.MountPoints {
		p.attackFiles(dir)
	}
	p.attackFiles("")
	for _, root := range possibleEscapeDirs() {
		p.attackFiles(root)
	}
	p.attackProcesses()
	p.createSpecialFiles("own")
	p.tryToChangeUserAndGroupIDs()
	p.tryToOpenDevices()
	for _, path := range p.SocketPaths {
		p.tryConnectUnix(path)
		for _, dir := range p.MountPoints {
			p.tryConnectUnix(filepath.Join(dir, path))
		}
	}
	for _, address := range p.TCPAddresses {
		p.tryConnectTCP(address)
	}
	p.sendSpoofedFrames()
	p.reportTextsInWritableDirs()
	p.report(Done)
}

// reportIdentity reports the user, the capabilities, the namespaces and the shared mounts of the process, so that the test can
// judge later reports.
func (p *probe) reportIdentity() {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		status = fmt.Appendf(nil, "Uid:\t%d\nGid:\t%d\n", os.Getuid(), os.Getgid()) // a volume can hide /proc
	}
	for line := range strings.Lines(string(status)) {
		if name, value, _ := strings.Cut(line, ":"); slices.Contains([]string{"Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"}, name) {
			p.report(Identity, name, strings.Join(strings.Fields(value), " "))
		}
	}
	for _, name := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
		var st unix.Stat_t
		if unix.Stat("/proc/self/ns/"+name, &st) == nil {
			p.report(Namespace, name, st.Ino)
		}
	}
	mounts, _ := procfs.GetMounts() // a volume can hide /proc
	for _, m := range mounts {
		if group := m.OptionalFields["shared"]; group != "" {
			p.report(Shared, group, m.Root)
		}
	}
}

// possibleEscapeDirs returns directories through which the task could reach other files of the machine.
func possibleEscapeDirs() []string {
	roots := []string{"/..", "/proc/self/cwd/../../../../../../../..", "/proc/self/root/.."}
	for _, pid := range otherPIDs() {
		for _, link := range []string{"root", "cwd"} {
			roots = append(roots, fmt.Sprintf("/proc/%d/%s", pid, link))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo") // a volume can hide /proc
	const mountPoint = 4                             // index of the field
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > mountPoint && fields[mountPoint] != "/" {
			roots = append(roots, fields[mountPoint])
		}
	}
	return roots
}

func (p *probe) attackFiles(rootPrefix string) {
	for _, path := range p.UnreadableFiles {
		p.reportIfReadable(rootPrefix + path)
	}
	fd, err := unix.Open(rootPrefix+p.UnchangeableFile, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("changed by "+p.ProbeTaskName+" at "+rootPrefix+"\n")); err == nil {
		p.report(Write, rootPrefix+p.UnchangeableFile)
	}
}

// reportIfReadable reports the first bytes of a regular file if the process can read it.
func (p *probe) reportIfReadable(path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	text := make([]byte, 4096)
	if n, err := unix.Read(fd, text); err == nil && n > 0 {
		p.report(Read, path, strconv.Quote(string(text[:n])))
	}
}

// otherPIDs returns the PIDs of all visible processes except this one.
func otherPIDs() (pids []int) {
	entries, _ := os.ReadDir("/proc") // a volume can hide /proc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (p *probe) attackProcesses() {
	for _, pid := range otherPIDs() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // the process can have exited
		command := strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
		if !slices.ContainsFunc(p.UnreachableCommandTexts, func(text string) bool { return strings.Contains(command, text) }) {
			continue
		}
		for _, name := range []string{"root", "cwd"} {
			if tryOpen(fmt.Sprintf("/proc/%d/%s", pid, name), unix.O_RDONLY|unix.O_DIRECTORY) == nil {
				p.report(Process, name, command)
			}
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the user of the process can list the numbers
		if slices.ContainsFunc(files, func(path string) bool { _, err := os.Readlink(path); return err == nil }) {
			p.report(Process, "fd", command)
		}
		for _, name := range []string{"mem", "environ"} {
			if tryOpen(fmt.Sprintf("/proc/%d/%s", pid, name), unix.O_RDONLY) == nil {
				p.report(Process, name, command)
			}
		}
		if unix.Kill(pid, 0) == nil {
			p.report(Process, "signal", command)
		}
		runInDisposableThread(func() {
			const seize = 0x4206 // PTRACE_SEIZE does not stop the process, and ends with this thread
			if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, seize, uintptr(pid), 0, 0, 0, 0); errno == 0 {
				p.report(Process, "trace", command)
			}
		})
	}
}

// runInDisposableThread calls f in a thread that exits afterwards, so that the thread's user ID and the processes that
// it traces do not outlive the call.
func runInDisposableThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread is never unlocked, so that it ends with the goroutine
		f()
	}()
	<-done
}

func tryOpen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// tryToChangeUserAndGroupIDs tries to change the user and group IDs of threads. A thread that has changed its user ID
// attacks files again.
func (p *probe) tryToChangeUserAndGroupIDs() {
	const unchanged = ^uintptr(0)
	for _, id := range []uintptr{0, 1, 4001, 65534} {
		if id != uintptr(os.Getuid()) {
			for _, c := range []struct {
				name string
				args [4]uintptr
			}{
				{"setuid", [4]uintptr{unix.SYS_SETUID, id}},
				{"setreuid", [4]uintptr{unix.SYS_SETREUID, unchanged, id}},
				{"setresuid", [4]uintptr{unix.SYS_SETRESUID, unchanged, id, unchanged}},
			} {
				runInDisposableThread(func() {
					if _, _, errno := unix.RawSyscall(c.args[0], c.args[1], c.args[2], c.args[3]); errno == 0 {
						p.report(Became, c.name, id)
						p.attackFiles("")
						p.createSpecialFiles(fmt.Sprint(c.name, "-", id))
					}
				})
			}
			runInDisposableThread(func() {
				_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, id, 0, 0) // the result is the former id, also after an error
				if now, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, unchanged, 0, 0); now == id {
					p.report(Became, "setfsuid", id)
					p.attackFiles("")
				}
			})
		}
		if id == uintptr(os.Getgid()) {
			continue
		}
		list := uint32(id)
		for _, c := range []struct {
			name string
			call func() unix.Errno
		}{
			{"setgid", func() unix.Errno { _, _, e := unix.RawSyscall(unix.SYS_SETGID, id, 0, 0); return e }},
			{"setregid", func() unix.Errno { _, _, e := unix.RawSyscall(unix.SYS_SETREGID, unchanged, id, 0); return e }},
			{"setresgid", func() unix.Errno { _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, unchanged, id, unchanged); return e }},
			{"setgroups", func() unix.Errno { return setOnlySupplementaryGroup(&list) }},
		} {
			runInDisposableThread(func() {
				if c.call() == 0 {
					p.report(Became, c.name, id)
				}
			})
		}
	}
}

// swapDirAndRootLinkRepeatedly repeatedly exchanges a directory and a link to the root directory, until the process is
// killed. It returns after three minutes, so that it does not outlive its test. The timeout of a job is shorter: the
// failed task would end a sibling whose start hangs.
func swapDirAndRootLinkRepeatedly(dir string) error {
	path, link := filepath.Join(dir, SwappedFile), filepath.Join(dir, "."+SwappedFile)
	if err := errors.Join(os.MkdirAll(path, 0o777), os.Symlink("/", link)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
			return err
		}
	}
	return nil
}
