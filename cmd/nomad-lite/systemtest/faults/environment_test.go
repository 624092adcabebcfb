package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// agentEnvironment is the user of an agent, and whether the agent can use cgroups. The zero value
// is root with cgroups.
type agentEnvironment struct {
	name      string
	uid       uint32 // 0 means root
	noCgroups bool   // the agent cannot use cgroups; an unprivileged user never can
}

var allAgentEnvironments = []agentEnvironment{
	{name: "root"},
	{name: "root without cgroups", noCgroups: true},
	{name: "a user", uid: 54321},
}

// newCommand returns a command that runs with the user and the cgroups of the environment.
// TestMain selects the program by its name.
func (a agentEnvironment) newCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{name}, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "XDG_") || strings.HasPrefix(v, "HOME=") || strings.HasPrefix(v, systemtest.TestConfigEnvVar)
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if a.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.uid}
	}
	if a.noCgroups {
		cmd.Args = append([]string{"without-cgroups"}, cmd.Args...)
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	return cmd
}

// chown makes the user of the environment the owner of an existing directory.
func (a agentEnvironment) chown(dir string) error {
	return errors.Join(os.Chmod(dir, 0o711), os.Chown(dir, int(a.uid), int(a.uid)))
}

// remove removes the directory of a node, including the data directory.
func (a agentEnvironment) remove(dir string) error {
	if a.uid == 0 {
		return allocdir.UnmountAndRemoveOwnDir(dir)
	}
	_ = unix.Unmount(filepath.Join(dir, "data"), unix.MNT_DETACH) // the data directory can be a mounted disk
	return os.RemoveAll(dir)                                      // allocdir.UnmountAndRemoveOwnDir rejects directories of other users
}

// tmpfsDisk is the mount point of a file system in memory that can be made full.
type tmpfsDisk string

// mount mounts the disk with the user of the environment as its owner.
func (d tmpfsDisk) mount(s agentEnvironment) error {
	return unix.Mount("tmpfs", string(d), "tmpfs", 0, fmt.Sprintf("size=1g,mode=0711,uid=%d,gid=%[1]d", s.uid))
}

// fill reduces the size of the disk until it has no free block.
func (d tmpfsDisk) fill() error {
	var stat unix.Statfs_t
	if err := unix.Statfs(string(d), &stat); err != nil {
		return err
	}
	return d.resize(fmt.Sprint((stat.Blocks - stat.Bfree) * uint64(stat.Bsize)))
}

func (d tmpfsDisk) makeRoom() error { return d.resize("1g") }

func (d tmpfsDisk) resize(size string) error {
	return unix.Mount("tmpfs", string(d), "tmpfs", unix.MS_REMOUNT, "size="+size)
}

// mountExt4 mounts a new disk on which, other than on tmpfs, a directory needs a free block.
func mountExt4(dir string) error {
	image := dir + ".ext4"
	const size = 64 << 20
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
		return err
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image}, {"mount", "-o", "loop", image, dir}} {
		if output, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", args[0], err, output)
		}
	}
	return nil
}

// linkProgram gives a program of this package a path that every user can execute.
func linkProgram(program, path string) error {
	from, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	if err = os.Link(from, path); !errors.Is(err, syscall.EXDEV) {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	// The file is copied while no child is started: a child that inherits the file while it is open
	// for writing makes its execution fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, text, 0o755)
}
