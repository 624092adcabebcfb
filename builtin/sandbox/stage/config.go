package stage

import (
	"os"
	"syscall"
)

// EnvName is the environment variable with which the binary is the stage.
const EnvName = "NOMAD_LITE_STAGE"

// envJoined is the value of EnvName in a stage that has joined the user and the PID namespace of a
// task.
const envJoined = "joined"

// Descriptors of the stage.
const (
	ConfigFD = 3 // the Config as JSON
	StatusFD = 4 // pipe to which the stage writes a byte before it executes the program, and a Failure after an error
	TaskFD   = 5 // pidfd of the task that is joined

	MarkFD    = 5 // mark of the start of a task
	ReleaseFD = 6 // pipe that the driver closes when the mark names the stage, and the kernel when the driver exits

	lastFD = ReleaseFD
)

// Config is what the stage does.
type Config struct {
	Join    bool     // join the namespaces of the task of TaskFD in place of making mounts
	Probe   bool     // exit after a mount that every task needs, in place of executing a program
	Root    *Root    // nil with Join
	Program Program  // is executed
	User    User     // runs the program
	Private Isolated // the namespaces of the task that are not the host's

	// WaitForMark means that the stage waits on ReleaseFD, and executes the program only if the mark of MarkFD
	// says then that the process was forked.
	WaitForMark bool

	// UserNamespace means that the driver is not root: the task is in a user namespace that has only
	// the user and the group of the driver, in which the stage has the capabilities that it needs.
	UserNamespace bool
}

// Isolated are the namespaces that a task does not share with the host.
type Isolated struct{ PID, IPC, Net, UTS bool }

// Program is the program that the stage becomes.
type Program struct {
	Path string // looked up in the root directory of the task
	Args []string
	Dir  string
	Env  []string
}

// User is the user of a task with its privileges.
type User struct {
	UID, GID uint32
	Groups   []uint32
	SameIDs  bool // keep the ids and groups of the stage, which cannot change them

	// The sets of capabilities have bit n for capability n. A program can have no
	// capability outside of Bounding. It starts with those of Ambient or, as root, with
	// those of Bounding.
	Bounding, Ambient uint64

	Filter []byte // system call filter: the bytes of an array of struct sock_filter; empty means none
}

// Root describes the root directory of a task. Paths of the task are as the task sees them.
type Root struct {
	Dir      string // path on the host
	NoPivot  bool   // move the mount to / in place of pivot_root(2), which an initramfs does not support
	Mounts   []Mount
	Devices  []Device
	Files    []File // take the place of files of the host
	Hostname string // of the task, if it does not share the UTS namespace
}

// Mount is a bind mount of a file or directory of the host.
type Mount struct {
	Source, Target string
	Resolved       bool // Source has no symbolic links: one that is there now was made by a task, and is an error
	ReadOnly       bool
	Propagation    uintptr // MS_PRIVATE, MS_SLAVE or MS_SHARED
}

// File is a read-only file in the root directory of the task.
type File struct {
	Path, Text string

	mount int // descriptor of its mount, 0 until it is made
}

// Device is a device of the host, as a path below /dev of the task.
type Device struct {
	Source, Target string
	Mode           uint32 // permissions of the owner, which is the user of the task; in a user namespace those of the host stay
}

// Failure is why the stage has not executed the program. It is os.ErrNotExist or
// os.ErrPermission if the program does not exist, or cannot be executed.
type Failure struct {
	Text  string
	Errno syscall.Errno // 0 if no system call has failed

	IsProgram bool // the program, and not the task's directories, does not exist or cannot be executed
}

func (f *Failure) Error() string { return f.Text }

// Unwrap returns the error number, unless a caller would take it for that of the program.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 || !f.IsProgram && (f.Errno.Is(os.ErrNotExist) || f.Errno.Is(os.ErrPermission)) {
		return nil
	}
	return f.Errno
}
