package safepath

import (
	"bufio"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// account is the user who uses a path.
type account struct {
	uid       int
	namespace bool // whether some users of the machine have no id in this user namespace
}

func process() account { return account{os.Geteuid(), !allMapped()} }

// unmapped is the owner that a user namespace shows for a file whose real owner has no
// id in the namespace, such as /.
const unmapped = 65534

// trusts reports whether uid is the account itself or root.
func (a account) trusts(uid uint32) bool { return uid == 0 || int(uid) == a.uid }

// checkParent returns an error if other users may replace files in a directory.
func (a account) checkParent(dir string, st *unix.Stat_t, acl bool) error {
	mode := st.Mode & 0o7777
	above := func(id uint32) bool { return a.namespace && id == unmapped }
	switch {
	case !a.trusts(st.Uid) && !above(st.Uid):
		return a.ownerError(dir, st.Uid)
	case mode&unix.S_ISVTX != 0: // sticky: only the owner of a file can replace it
		return nil
	case mode&0o002 != 0:
		return everybodyError(dir, mode)
	case mode&0o020 != 0 && a.uid == 0 && (acl || st.Gid != 0 && !above(st.Gid)):
		return groupError(dir, st.Gid, mode)
	}
	return nil
}

// checkDir returns an error if other users may put files into a directory.
func (a account) checkDir(dir string, st *unix.Stat_t, acl bool) error {
	mode := st.Mode & 0o7777
	switch {
	case !a.trusts(st.Uid):
		return a.ownerError(dir, st.Uid)
	case mode&0o002 != 0:
		return everybodyError(dir, mode)
	case mode&0o020 != 0 && (acl || st.Gid != 0 && st.Gid != st.Uid):
		return groupError(dir, st.Gid, mode)
	}
	return nil
}

func (a account) ownerError(dir string, owner uint32) error {
	return fmt.Errorf("%s belongs to user %d, who could change what the agent runs: have user %d own it", dir, owner, a.uid)
}

func everybodyError(dir string, mode uint32) error {
	return fmt.Errorf("everybody may write to %s (mode %04o), and could change what the agent runs: chmod o-w %s", dir, mode, dir)
}

func groupError(dir string, group, mode uint32) error {
	return fmt.Errorf("all of group %d may write to %s (mode %04o), and could change what the agent runs: chmod g-w %s", group, dir, mode, dir)
}

func linkError(link string, owner uint32) error {
	return fmt.Errorf("the link %s belongs to user %d, who could change what the agent runs: name the directory itself", link, owner)
}

// allMapped reports whether each user of the machine has an id here, as in the initial
// user namespace: then 65534 is an account, and tasks may run as it.
func allMapped() bool {
	f, err := os.Open("/proc/self/uid_map")
	if err != nil {
		return true
	}
	defer f.Close()
	var mapped uint64
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var first, outside, count uint64
		if _, err := fmt.Sscan(lines.Text(), &first, &outside, &count); err == nil {
			mapped += count
		}
	}
	return mapped >= 1<<32-1
}
