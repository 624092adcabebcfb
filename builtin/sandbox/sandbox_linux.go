package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/builtin/seccomp"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Options describe how a task is isolated. They are stored in the state of the task, because
// commands that are executed in the task need them.
type Options struct {
	HostPID         bool       `codec:"host_pid"`      // true if the task shares the PID namespace of the host
	HostIPC         bool       `codec:"host_ipc"`      // true if the task shares the IPC namespace and /dev/shm of the host
	NoPivotRoot     bool       `codec:"no_pivot_root"` // true replaces pivot_root(2), see stage.Root
	NoSyscallFilter bool       `codec:"no_filter"`     // true disables the system call filter
	Privileges      Privileges `codec:"privileges"`
	DefaultUser     string     `codec:"default_user"` // user of a task whose job names no user

	// AllowSetuidSetgidBits, SetuidDeniedUIDs and SetgidDeniedGIDs are options of the system call filter: see
	// seccomp.Profile.
	AllowSetuidSetgidBits bool        `codec:"allow_setid_bits"`
	SetuidDeniedUIDs      idrange.Set `codec:"denied_uids"`
	SetgidDeniedGIDs      idrange.Set `codec:"denied_gids"`

	// InUserNamespace isolates the task in a user namespace, for a driver that is not root; see
	// UseUserNamespace.
	InUserNamespace bool `codec:"user_namespace"`
}

// Sandbox isolates one task.
type Sandbox struct {
	options Options
	start   *sdk.StartRequest
}

var _ process.Launcher = (*Sandbox)(nil)

// New returns the sandbox of a task.
func New(start *sdk.StartRequest, o Options) *Sandbox { return &Sandbox{options: o, start: start} }

// privateNamespaces returns the namespaces that the task does not share.
func (s *Sandbox) privateNamespaces() stage.PrivateNamespaces {
	n := s.start.NetworkIsolation
	return stage.PrivateNamespaces{
		PID: !s.options.HostPID, IPC: !s.options.HostIPC,
		Net: n != nil && n.Mode == driver.NetworkNone && n.Path == "",
		UTS: n != nil && n.Hosts != nil && n.Hosts.Hostname != "",
	}
}

func (s *Sandbox) taskCredential() (*syscall.Credential, error) {
	return TaskCredential(s.start.User, s.options.DefaultUser)
}

// PrepareLaunch returns the attributes with which package process starts the stage that executes a
// program.
func (s *Sandbox) PrepareLaunch(p process.Program) (*process.Launch, error) {
	c, err := s.buildStageConfig(p)
	if err != nil {
		return nil, err
	}
	c.WaitForStartMark = p.StartMarkFile != nil
	stageLaunch, err := newStageLaunch(c)
	if err != nil {
		return nil, err
	}
	if p.StartMarkFile != nil {
		if err := addStartMarkAndReleasePipe(stageLaunch, p.StartMarkFile); err != nil {
			stageLaunch.Close()
			return nil, err
		}
	}
	// The variables of the task stay out of the environment: the stage has privileges, and its
	// dynamic loader and runtime read variables. Only NOMAD_ALLOC_ID and NOMAD_TASK_NAME are set,
	// because an agent finds the processes of a task by them.
	stageLaunch.Env = append(stageLaunch.Env, "NOMAD_ALLOC_ID="+s.start.AllocID, "NOMAD_TASK_NAME="+s.start.Name)
	if p.TaskPidfd != nil {
		stageLaunch.Files = append(stageLaunch.Files, p.TaskPidfd)
		if !s.options.InUserNamespace { // the stage itself joins a user namespace, and then the others
			stageLaunch.BeforeFork = func() error { return s.setPIDNamespaceForChildren(p.TaskPidfd) }
		}
	}
	return stageLaunch, nil
}

// addStartMarkAndReleasePipe adds the start mark to the files of the stage, and a pipe that the driver closes when
// the stage may read the mark.
func addStartMarkAndReleasePipe(l *process.Launch, mark *os.File) error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return sdk.Recoverable(err)
	}
	l.Files = append(l.Files, mark, reader)
	l.ReleaseStage = func() { writer.Close() }
	closeStage := l.Close
	l.Close = func() {
		reader.Close()
		writer.Close()
		closeStage()
	}
	return nil
}

// newStageLaunch returns the attributes with which the stage is started with a configuration.
func newStageLaunch(c *stage.Config) (*process.Launch, error) {
	l := &stageFiles{}
	if err := l.createConfigFileAndStatusPipe(c); err != nil {
		l.closeAll()
		return nil, err
	}
	stageLaunch := &process.Launch{
		Path:        "/proc/self/exe",
		Args:        []string{stage.ProcessName},
		Env:         []string{stage.EnvName + "=1", "GOMAXPROCS=1"}, // one thread at a time: a stage does one thing after the other
		Files:       []*os.File{l.configFile, l.statusWriter},
		WaitForExec: l.waitForExec,
		Close:       l.closeAll,
	}
	if c.JoinsTask {
		return stageLaunch, nil
	}
	if c.CopiesHostMounts() {
		stageLaunch.CloneFlags = unix.CLONE_NEWNS
		stageLaunch.Files = append(stageLaunch.Files, nil) // stage.NamespaceFD is not open
	} else if namespace, err := emptyNamespace.open(); err != nil {
		l.closeAll()
		return nil, sdk.Recoverable(err)
	} else {
		stageLaunch.Files = append(stageLaunch.Files, namespace)
	}
	for _, n := range []struct {
		private bool
		flag    uintptr
	}{{c.PrivateNamespaces.PID, unix.CLONE_NEWPID}, {c.PrivateNamespaces.IPC, unix.CLONE_NEWIPC}, {c.PrivateNamespaces.Net, unix.CLONE_NEWNET}, {c.PrivateNamespaces.UTS, unix.CLONE_NEWUTS}} {
		if n.private {
			stageLaunch.CloneFlags |= n.flag
		}
	}
	if c.InUserNamespace {
		stageLaunch.UserNamespaceCaps = stage.Capabilities
	}
	return stageLaunch, nil
}

// setPIDNamespaceForChildren makes the PID namespace of the task the namespace of the calling thread's next
// child processes.
func (s *Sandbox) setPIDNamespaceForChildren(taskPidfd *os.File) error {
	if s.options.HostPID {
		return nil
	}
	if err := unix.Setns(int(taskPidfd.Fd()), unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("enter the PID namespace of the task: %w", err)
	}
	return nil
}

func (s *Sandbox) buildStageConfig(p process.Program) (*stage.Config, error) {
	cred, err := s.taskCredential()
	if err != nil {
		return nil, err
	}
	o := s.options
	if n := s.start.NetworkIsolation; o.InUserNamespace && n != nil && n.Path != "" {
		return nil, errors.New("the network namespace of the group can be entered only under an agent of root")
	}
	c := &stage.Config{
		JoinsTask:         p.TaskPidfd != nil,
		Program:           stage.Program{Path: p.Path, Args: p.Args, WorkDir: p.Dir, Env: p.Env},
		PrivateNamespaces: s.privateNamespaces(),
		User: stage.User{
			UID: cred.Uid, GID: cred.Gid, Groups: cred.Groups, KeepStageIDs: o.InUserNamespace,
			BoundingCaps: uint64(o.Privileges.Bounding),
		},
		InUserNamespace: o.InUserNamespace,
	}
	if c.Program.WorkDir == "" {
		c.Program.WorkDir = "/"
	}
	if cred.Uid != 0 {
		c.User.AmbientCaps = uint64(o.Privileges.Ambient)
	}
	if !o.NoSyscallFilter {
		if c.User.SyscallFilter, err = o.compileOrReuseSyscallFilter(); err != nil {
			return nil, err
		}
	}
	if !c.JoinsTask {
		c.Root, err = s.buildStageRoot()
	}
	return c, err
}

// compiledFilter is a system call filter with the profile from which it was compiled.
type compiledFilter struct {
	profile         seccomp.Profile
	sockFilterBytes []byte
}

// lastFilter is the filter of the last task: most tasks have the same profile, because few tasks
// name capabilities.
var lastFilter atomic.Pointer[compiledFilter]

// compileOrReuseSyscallFilter returns the system call filter in the form of the field SyscallFilter of
// stage.User.
func (o *Options) compileOrReuseSyscallFilter() ([]byte, error) {
	profile := seccomp.Profile{
		CapabilityBits: uint64(o.Privileges.Bounding), AllowSetuidSetgidBits: o.AllowSetuidSetgidBits, DeniedUIDs: o.SetuidDeniedUIDs, DeniedGIDs: o.SetgidDeniedGIDs,
	}
	if last := lastFilter.Load(); last != nil && reflect.DeepEqual(last.profile, profile) {
		return last.sockFilterBytes, nil
	}
	filter, err := profile.CompileFilter()
	if err != nil {
		return nil, err
	}
	compiled := &compiledFilter{profile, encodeFilter(filter)}
	lastFilter.Store(compiled)
	return compiled.sockFilterBytes, nil
}

func encodeFilter(filter []unix.SockFilter) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&filter[0])), len(filter)*int(unsafe.Sizeof(filter[0])))
}

var propagations = map[string]uintptr{"": unix.MS_PRIVATE, "private": unix.MS_PRIVATE, "host-to-task": unix.MS_SLAVE, "bidirectional": unix.MS_SHARED}

const maxHostname = 64

func (s *Sandbox) buildStageRoot() (*stage.Root, error) {
	r := &stage.Root{HostDir: s.start.TaskDir(), NoPivotRoot: s.options.NoPivotRoot, ReplacementFiles: networkReplacementFiles(s.start.NetworkIsolation, s.start.DNS)}
	if n := s.start.NetworkIsolation; n != nil && n.Hosts != nil {
		if r.Hostname = n.Hosts.Hostname; len(r.Hostname) > maxHostname {
			return nil, fmt.Errorf("hostname %q of the network block has %d characters, and Linux permits %d", r.Hostname, len(r.Hostname), maxHostname)
		}
	}
	for _, m := range s.start.Mounts {
		if s.options.InUserNamespace && m.PropagationMode == "bidirectional" {
			return nil, fmt.Errorf(`mount %s: the propagation mode "bidirectional" needs an agent of root: mounts of a user namespace do not appear on the machine; write "private" or "host-to-task"`, m.TaskPath)
		}
		propagation, ok := propagations[m.PropagationMode]
		if !ok {
			return nil, fmt.Errorf("mount %s: the propagation mode %q is unknown", m.TaskPath, m.PropagationMode)
		}
		r.Mounts = append(r.Mounts, stage.Mount{Source: m.HostPath, Target: m.TaskPath, SourceHasNoSymlinks: m.RequestName != "", ReadOnly: m.Readonly, PropagationFlag: propagation, IsMachineFile: isMachineFile(m)})
	}
	for _, d := range s.start.Devices {
		target := d.TaskPath
		if target == "" {
			target = d.HostPath
		}
		mode := deviceOwnerMode(d.Permissions)
		if s.options.InUserNamespace && mode != deviceOwnerMode("") {
			return nil, fmt.Errorf("device %s: the permissions %q need an agent of root: without it, the permissions of the device on the machine apply", d.HostPath, d.Permissions)
		}
		r.Devices = append(r.Devices, stage.Device{Source: d.HostPath, Target: target, OwnerPermissions: mode})
	}
	return r, nil
}

// isMachineFile reports whether a mount shows a file of the machine at the path that the file has there.
func isMachineFile(m driver.Mount) bool {
	if !m.Readonly || m.RequestName != "" {
		return false
	}
	path, err := filepath.EvalSymlinks(m.TaskPath)
	return err == nil && path == m.HostPath
}

// deviceOwnerMode returns the permissions of a device's owner for the letters of a device cgroup.
func deviceOwnerMode(permissions string) uint32 {
	var mode uint32
	if permissions == "" || strings.Contains(permissions, "r") {
		mode |= 0o400
	}
	if permissions == "" || strings.Contains(permissions, "w") {
		mode |= 0o200
	}
	return mode
}

// networkReplacementFiles returns the files that tasks in a namespace, or with DNS settings, do not share with the
// machine.
func networkReplacementFiles(isolation *driver.NetworkIsolation, dns *driver.DNSConfig) []stage.ReplacementFile {
	var files []stage.ReplacementFile
	machine := netfiles.MachineResolver
	if isolation != nil && isolation.Path != "" {
		machine = netfiles.NamespaceResolver
		if h := isolation.Hosts; h != nil {
			files = append(files, stage.ReplacementFile{Path: "/etc/hosts", Text: netfiles.HostsFile(h.Address, h.Hostname)})
		}
	}
	if dns != nil {
		resolver := netfiles.Resolver{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
		files = append(files, stage.ReplacementFile{Path: "/etc/resolv.conf", Text: resolver.WithDefaults(machine()).String()})
	}
	return files
}

// stageFiles has the files through which the driver communicates with one stage.
type stageFiles struct {
	configFile                 *os.File
	statusReader, statusWriter *os.File
}

func (s *stageFiles) createConfigFileAndStatusPipe(c *stage.Config) (err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("nomad-lite-stage", unix.MFD_CLOEXEC)
	if err != nil {
		return sdk.Recoverable(fmt.Errorf("make the configuration of the stage: %w", err))
	}
	s.configFile = os.NewFile(uintptr(fd), "stage configuration")
	if _, err := s.configFile.Write(text); err != nil {
		return err
	}
	if _, err := s.configFile.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if s.statusReader, s.statusWriter, err = os.Pipe(); err != nil {
		return sdk.Recoverable(err)
	}
	return nil
}

func (s *stageFiles) closeAll() {
	for _, f := range []*os.File{s.configFile, s.statusReader, s.statusWriter} {
		if f != nil {
			f.Close()
		}
	}
}

// waitForExec blocks until the stage executes the program or exits, and returns the reason if the program
// is not executed.
func (s *stageFiles) waitForExec() error {
	s.statusWriter.Close() // the stage has its own copy
	status, err := io.ReadAll(s.statusReader)
	if err != nil {
		return err
	}
	line, text, executed := strings.Cut(string(status), "\n")
	if executed = executed && strings.HasPrefix(line, "."); executed {
		opcount.Add(opcount.Parse(line[1:]))
	} else {
		text = string(status)
	}
	switch {
	case text != "":
		f := &stage.Failure{}
		if err := json.Unmarshal([]byte(text), f); err != nil {
			return fmt.Errorf("read the failure of the stage: %w", err)
		}
		return f
	case !executed:
		return errors.New("the task was killed before its program was executed; the cause can be its memory limit")
	}
	return nil
}
