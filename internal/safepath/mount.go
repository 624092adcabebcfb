package safepath

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IsMount reports whether child, opened by a name in the directory parent, is on another mount. It does not
// compare device numbers, because a bind mount has the same number as its source.
func IsMount(parent, child int) (bool, error) {
	p, err := MountID(parent)
	if err != nil {
		return false, err
	}
	c, err := MountID(child)
	return p != c, err
}

// MountID returns the id of the mount that an open file or directory is on. No two mounts have the same id at a time.
func MountID(fd int) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		return st.Mnt_id, nil
	}
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd)) // before Linux 5.8
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.ParseUint(strings.TrimSpace(id), 10, 64)
		}
	}
	return 0, errors.New("the kernel does not identify mounts")
}
