package programs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// execWithoutCgroups is the program "without-cgroups PROGRAM [ARGUMENT...]". It hides the cgroups in its mount
// namespace, and executes the program. A shell script could not replace it, because a shell that waits for mount
// ignores SIGINT.
func execWithoutCgroups() {
	err := errors.Join(
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", "/sys/fs/cgroup", "ramfs", 0, ""),
	)
	if err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
