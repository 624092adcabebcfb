package safepath

import (
	"io/fs"
	"os"
	"path/filepath"
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
	real, err := self.resolveAndCheck(dir)
	if err != nil {
		return err
	}
	st, err := lstat(real)
	if err != nil {
		return err
	}
	return self.checkDir(real, st, hasACL(real))
}

// CheckParents returns an error if a user other than this one and root could replace
// path. It checks each directory in which a part of path is looked up, including the
// directories that symbolic links lead through. It does not check the file or directory
// that path names. The error names the directory at fault and a remedy.
func CheckParents(path string) error {
	_, err := currentAccount().resolveAndCheck(path)
	return err
}

// resolveAndCheck resolves path as the kernel does, checks each directory in which it looks
// up a name, and returns the path without links.
func (a userAccount) resolveAndCheck(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	at, links := "/", 0
	shared := false // shared: the directory at has the sticky bit, and other users may write to it
	parts := strings.Split(path, "/")
	for checked := ""; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		if part == "" || part == "." {
			continue
		}
		if at != checked {
			st, err := lstat(at)
			if err != nil {
				return "", err
			}
			if err := a.checkParent(at, st, hasACL(at)); err != nil {
				return "", err
			}
			shared, checked = st.Mode&0o022 != 0, at
		}
		if part == ".." {
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, part)
		st, err := lstat(next)
		if err != nil {
			return "", err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at = next
			continue
		}
		if shared && !a.isSelfOrRoot(st.Uid) {
			return "", linkOwnerError(next, st.Uid)
		}
		if links++; links > maxSymlinks {
			return "", &fs.PathError{Op: "look at", Path: path, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		parts = append(strings.Split(target, "/"), parts...)
	}
	return at, nil
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
