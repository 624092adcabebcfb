//go:build linux

package osprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupParentsFile has the parents of task cgroups, besides the default ones, that agents of root have used since the machine was
// booted: one path in a line, relative to the mount point. Drivers and later agents find the cgroups of running tasks with it.
// The directory /run is empty after a boot, as the cgroups are.
var cgroupParentsFile = "/run/nomad-lite-cgroup-parents"

// maxCgroupParentsFileBytes limits how much of cgroupParentsFile is read.
const maxCgroupParentsFileBytes = 64 << 10

// RecordCgroupParent makes [TaskCgroupParents] also return the cgroups below a parent, for all processes of the machine. It may be
// called again for the same parent, and by several processes at once.
func RecordCgroupParent(parent string) error {
	if slices.Contains(RecordedCgroupParents(), parent) {
		return nil
	}
	f, err := os.OpenFile(cgroupParentsFile, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("record the cgroup parent: %w", err)
	}
	_, err = f.WriteString(parent + "\n")
	return errors.Join(err, f.Close())
}

// RecordedCgroupParents returns the parents that [RecordCgroupParent] has recorded since the machine was booted. It is empty if
// another user than root owns the record.
func RecordedCgroupParents() (parents []string) {
	f, err := os.OpenFile(cgroupParentsFile, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Uid != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	buf := make([]byte, min(st.Size, maxCgroupParentsFileBytes))
	n, _ := f.Read(buf) // what cannot be read is not there
	for line := range strings.Lines(string(buf[:n])) {
		parent, isComplete := strings.CutSuffix(line, "\n")
		if isComplete && fs.ValidPath(parent) && parent != "." && !slices.Contains(parents, parent) {
			parents = append(parents, parent)
		}
	}
	return parents
}

// slicesBelow returns a directory of version 2 and the slices in it.
func slicesBelow(dir string) ([]string, error) {
	children, err := readDirIfAllowed(dir)
	dirs := []string{dir}
	for _, child := range children {
		if strings.HasSuffix(child.Name(), ".slice") {
			dirs = append(dirs, path.Join(dir, child.Name()))
		}
	}
	return dirs, err
}
