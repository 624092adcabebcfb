package safepath

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSymlinks is the kernel's limit for symbolic links in one path.
const maxSymlinks = 40

// CheckDir returns an error if a user other than this one and root could put files into
// a directory, or replace the directory. It is for directories such as the agent's data
// directory, whose state determines the tasks that the agent runs, and their users. The
// error names the directory at fault and a remedy.
func CheckDir(dir string) error {
	self := currentAccount()
	at, err := self.resolveAndCheck(dir)
	if err != nil {
		return err
	}
	st, err := lstat(at.Path)
	if err != nil {
		return err
	}
	return self.checkCannotCreateIn(at.Path, st, hasACL(at.Path))
}

// CheckParents returns an error if a user other than this one and root could replace
// path. It checks each directory in which a part of path is looked up, including the
// directories that symbolic links lead through. It does not check the file or directory
// that path names. The error names the directory at fault and a remedy.
func CheckParents(path string) error {
	_, err := currentAccount().resolveAndCheck(path)
	return err
}

// Location is the file or directory to which a path leads after all symbolic links were followed.
type Location struct {
	Path string // absolute path without symbolic links

	id         fileID
	parentDirs []fileID // directories that the original path and its symbolic links lead through
}

type fileID struct{ device, inode uint64 }

// Locate follows the symbolic links of a path, and returns an error if a user other than this one and root could replace the
// file or directory that it leads to, like CheckParents, also by a link in a directory with the sticky bit. The error names
// the directory at fault and a remedy.
func Locate(name string) (*Location, error) {
	self := currentAccount()
	self.possibleHarm = "replace what is mounted"
	at, err := self.resolveAndCheck(name)
	if err != nil {
		return nil, err
	}
	st, err := lstat(at.Path)
	if err != nil {
		return nil, err
	}
	dir := path.Dir(at.Path)
	above, err := lstat(dir)
	if err != nil {
		return nil, err
	}
	if above.Mode&unix.S_ISVTX != 0 && above.Mode&0o022 != 0 && dir != at.Path && !self.isSelfOrRoot(st.Uid) {
		return nil, fmt.Errorf("%s belongs to user %d, who could replace it, because everybody may write to %s: move it to a directory of user %d", at.Path, st.Uid, dir, self.uid)
	}
	at.id = fileID{st.Dev, st.Ino}
	return at, nil
}

// IsBelow reports whether the path of l leads through the directory other: a user who can write to that directory can
// replace the file at l.
func (l *Location) IsBelow(other *Location) bool { return slices.Contains(l.parentDirs, other.id) }

// resolveAndCheck resolves the path name as the kernel does, and checks each directory in which it looks up a name. It returns a
// Location without its id.
func (a userAccount) resolveAndCheck(name string) (*Location, error) {
	if !path.IsAbs(name) {
		dir, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		name = path.Join(dir, name)
	}
	name = path.Clean(name)
	l := &Location{}
	at, links := "/", 0
	shared := false // the directory at has the sticky bit, and other users may write to it
	parts := strings.Split(name, "/")
	for checked := ""; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		if part == "" || part == "." {
			continue
		}
		if at != checked {
			st, err := lstat(at)
			if err != nil {
				return nil, err
			}
			if err := a.checkCannotReplaceIn(at, st, hasACL(at)); err != nil {
				return nil, err
			}
			shared, checked = st.Mode&0o022 != 0, at
			l.parentDirs = append(l.parentDirs, fileID{st.Dev, st.Ino})
		}
		if part == ".." {
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		st, err := lstat(next)
		if err != nil {
			return nil, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at = next
			continue
		}
		if shared && !a.isSelfOrRoot(st.Uid) {
			return nil, a.linkOwnerError(next, st.Uid)
		}
		if links++; links > maxSymlinks {
			return nil, &fs.PathError{Op: "look at", Path: name, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return nil, err
		}
		if path.IsAbs(target) {
			at = "/"
		}
		parts = append(strings.Split(target, "/"), parts...)
	}
	l.Path = at
	return l, nil
}

func lstat(path string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &fs.PathError{Op: "look at", Path: path, Err: err}
	}
	return &st, nil
}

// hasACL reports whether a path has an ACL: then the group bits of the mode are not the
// group's permissions, but the maximum for all users and groups of the ACL.
func hasACL(path string) bool {
	n, err := unix.Lgetxattr(path, "system.posix_acl_access", nil)
	return err == nil && n > 0
}
