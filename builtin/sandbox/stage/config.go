package stage

import (
	"os"
	"syscall"
)

// EnvName is the environment variable that makes the binary run as the stage.
const EnvName = "NOMAD_LITE_STAGE"

// ProcessName is the first argument of a stage process.
const ProcessName = "nomad-lite-stage"

// envJoined is the value of EnvName in a stage that has joined the user and the PID namespace of a
// task.
const envJoined = "joined"

// File descriptors that the stage inherits from the driver.
const (
	ConfigFD = 3 // the Config as JSON
	StatusFD = 4 // pipe to which the stage writes a line with "." and its opcount.Counts before it executes the program, and a Failure after an error
	TaskFD   = 5 // pidfd of the task whose namespaces the stage joins

	NamespaceFD = 5 // mount namespace whose only directory is TaskMountPoint, open in place of TaskFD; not open if Config.CopiesHostMounts
	MarkFD      = 6 // file with the start mark of a task
	ReleaseFD   = 7 // pipe whose other end the driver closes when the start mark records the stage; an exit of the driver closes it, too

	lastFD = ReleaseFD
)

// TaskMountPoint is the directory in the mount namespace of NamespaceFD on which a stage, in a copy of this namespace, mounts the
// root directory of its task.
const TaskMountPoint = "/task"

// Config describes what the stage does.
type Config struct {
	JoinsTask         bool              // true to join the namespaces of the task of TaskFD instead of making mounts
	ProbeOnly         bool              // true to exit after a mount that every task needs, instead of executing a program
	Root              *Root             // root directory of the task; nil if JoinsTask is true
	Program           Program           // program that the stage executes
	User              User              // user of the program
	PrivateNamespaces PrivateNamespaces // namespaces that the task does not share with the host

	// WaitForStartMark means that the stage blocks until ReleaseFD is closed, and executes the program
	// only if the start mark in MarkFD then records that the process was forked.
	WaitForStartMark bool

	// InUserNamespace means that the driver is not root: the task is in a user namespace that has only
	// the user and the group of the driver, in which the stage has the capabilities that it needs.
	InUserNamespace bool
}

// CopiesHostMounts reports whether the stage is forked into a copy of the host's mount namespace, in which it unmounts everything,
// instead of entering a copy of the namespace of NamespaceFD. A user namespace can clone mounts only of its own mount namespace. An
// initramfs, for which NoPivotRoot is, cannot be unmounted.
func (c *Config) CopiesHostMounts() bool { return c.InUserNamespace || c.Root.NoPivotRoot }

// PrivateNamespaces are the namespaces that a task does not share with the host.
type PrivateNamespaces struct{ PID, IPC, Net, UTS bool }

// Program is the program that the stage executes.
type Program struct {
	Path    string // looked up in the root directory of the task
	Args    []string
	WorkDir string
	Env     []string
}

// User is the user of a task with its privileges.
type User struct {
	UID, GID     uint32
	Groups       []uint32
	KeepStageIDs bool // true to keep the ids and groups of the stage, which cannot change them in a user namespace

	// The sets of capabilities have bit n for capability n. A program can have no
	// capability outside of BoundingCaps. It starts with the capabilities of AmbientCaps or, as root, of
	// BoundingCaps.
	BoundingCaps, AmbientCaps uint64

	SyscallFilter []byte // system call filter: the bytes of an array of struct sock_filter; empty means none
}

// Root describes the root directory of a task. Paths, except for paths on the host, are paths in
// this root directory.
type Root struct {
	HostDir          string // path on the host
	NoPivotRoot      bool   // true to move the mount to / instead of calling pivot_root(2), which an initramfs does not support
	Mounts           []Mount
	Devices          []Device
	ReplacementFiles []ReplacementFile // files that replace files of the host
	Hostname         string            // hostname of the task, if PrivateNamespaces.UTS is true
}

// Mount is a bind mount of a file or directory of the host.
type Mount struct {
	Source, Target      string
	SourceHasNoSymlinks bool // true if Source had no symbolic links when it was resolved: a link that is there now was made by a task, and is an error
	ReadOnly            bool
	PropagationFlag     uintptr // MS_PRIVATE, MS_SLAVE or MS_SHARED
	IsMachineFile       bool    // true if Source is the file of the machine at the path Target, as for a path of chroot_env: a ReplacementFile covers it
}

// ReplacementFile is a read-only file in the root directory of the task.
type ReplacementFile struct {
	Path, Text string

	detachedMountFD int // descriptor of the detached mount of the file; 0 before the file is made
}

// Device is a device of the host, as a path below /dev of the task.
type Device struct {
	Source, Target   string
	OwnerPermissions uint32 // permissions of the owner, which is the user of the task; ignored in a user namespace, where the permissions on the host apply
}

// Failure is the reason why the stage has not executed the program. It is os.ErrNotExist or
// os.ErrPermission if the program does not exist, or cannot be executed.
type Failure struct {
	Text  string
	Errno syscall.Errno // 0 if no system call has failed

	IsAboutJobProgram bool // true if the error is about the program, and not about the directories of the task
}

func (f *Failure) Error() string { return f.Text }

// Unwrap returns the error number, unless a caller would take it for an error of the program that
// it is not.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 || !f.IsAboutJobProgram && (f.Errno.Is(os.ErrNotExist) || f.Errno.Is(os.ErrPermission)) {
		return nil
	}
	return f.Errno
}
