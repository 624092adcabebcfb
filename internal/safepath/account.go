package safepath

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// userAccount is the user that is going to use a path: only this user and root may be able to replace files on the path.
type userAccount struct {
	uid             int
	inUserNamespace bool   // some users of the machine have no id in this user namespace
	possibleHarm    string // what another user could do, as a verb phrase for errors
}

func currentAccount() userAccount {
	return userAccount{os.Geteuid(), !allUIDsMapped(), "change what the agent runs"}
}

// overflowUID is the owner that a user namespace shows for files whose owner has no id in
// the namespace, such as /.
const overflowUID = 65534

// isSelfOrRoot reports whether uid is the id of the account or of root.
func (a userAccount) isSelfOrRoot(uid uint32) bool { return uid == 0 || int(uid) == a.uid }

// checkCannotReplaceIn returns an error if other users may replace files in a directory.
func (a userAccount) checkCannotReplaceIn(dir string, st *unix.Stat_t, acl bool) error {
	mode := st.Mode & 0o7777
	above := func(id uint32) bool { return a.inUserNamespace && id == overflowUID }
	switch {
	case !a.isSelfOrRoot(st.Uid) && !above(st.Uid):
		return a.ownerError(dir, st.Uid)
	case mode&unix.S_ISVTX != 0: // in a sticky directory only the owner of a file can replace it
		return nil
	case mode&0o002 != 0:
		return a.worldWritableError(dir, mode)
	case mode&0o020 != 0 && a.uid == 0 && (acl || st.Gid != 0 && !above(st.Gid)):
		return a.groupWritableError(dir, st.Gid, mode)
	}
	return nil
}

// checkCannotCreateIn returns an error if other users may create files in a directory.
func (a userAccount) checkCannotCreateIn(dir string, st *unix.Stat_t, acl bool) error {
	mode := st.Mode & 0o7777
	switch {
	case !a.isSelfOrRoot(st.Uid):
		return a.ownerError(dir, st.Uid)
	case mode&0o002 != 0:
		return a.worldWritableError(dir, mode)
	case mode&0o020 != 0 && (acl || st.Gid != 0 && st.Gid != st.Uid):
		return a.groupWritableError(dir, st.Gid, mode)
	}
	return nil
}

// ErrOtherOwner is the reason of an error about a file, directory or link that belongs to a user other than this one and root.
var ErrOtherOwner = errors.New("another owner")

// otherOwnerError has the text of an error whose reason is ErrOtherOwner.
type otherOwnerError string

func (e otherOwnerError) Error() string { return string(e) }

func (e otherOwnerError) Unwrap() error { return ErrOtherOwner }

func (a userAccount) ownerError(dir string, owner uint32) error {
	return otherOwnerError(fmt.Sprintf("%s belongs to user %d, who could %s: have user %d own it", dir, owner, a.possibleHarm, a.uid))
}

func (a userAccount) worldWritableError(dir string, mode uint32) error {
	return fmt.Errorf("everybody may write to %s (mode %04o), and could %s: chmod o-w %s", dir, mode, a.possibleHarm, dir)
}

func (a userAccount) groupWritableError(dir string, group, mode uint32) error {
	return fmt.Errorf("all of group %d may write to %s (mode %04o), and could %s: chmod g-w %s", group, dir, mode, a.possibleHarm, dir)
}

func (a userAccount) linkOwnerError(link string, owner uint32) error {
	return otherOwnerError(fmt.Sprintf("the link %s belongs to user %d, who could %s: name the directory itself", link, owner, a.possibleHarm))
}

// allUIDsMapped reports whether every user of the machine has an id in this user namespace,
// as in the initial one. Then 65534 is a real account, as which tasks may run, and not a
// replacement for unmapped users.
func allUIDsMapped() bool {
	f, err := os.Open("/proc/self/uid_map")
	if err != nil {
		return true
	}
	defer f.Close()
	var mappedCount uint64
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var firstID, hostID, idCount uint64
		if _, err := fmt.Sscan(lines.Text(), &firstID, &hostID, &idCount); err == nil {
			mappedCount += idCount
		}
	}
	return mappedCount >= 1<<32-1
}
