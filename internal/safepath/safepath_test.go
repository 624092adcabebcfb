package safepath

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const otherUID = 12345

// envCheckPath is the variable that makes the test binary check a path in a user namespace.
const envCheckPath = "SAFEPATH_TEST_PATH"

func TestMain(m *testing.M) {
	if path := os.Getenv(envCheckPath); path != "" {
		if err := CheckParents(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testDirEntry is a directory, or a link if it has a target, below the directory of a test.
type testDirEntry struct {
	path         string
	mode         os.FileMode
	owner, group int
	to           string
}

func makeEntries(t *testing.T, entries []testDirEntry) (root string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for dir := root; dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries {
		path := filepath.Join(root, e.path)
		if e.to != "" {
			err = os.Symlink(strings.ReplaceAll(e.to, "ROOT", root), path)
		} else {
			err = os.Mkdir(path, 0o700)
		}
		if os.Geteuid() == 0 {
			err = errors.Join(err, os.Lchown(path, e.owner, e.group))
		}
		if err == nil && e.to == "" {
			err = os.Chmod(path, e.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// checkError checks that the error contains the text want; an empty want means no error.
func checkError(t *testing.T, what string, err error, dir, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && err == nil:
		t.Errorf("%s: accepted, want %q", what, want)
	case want != "" && !(strings.Contains(err.Error(), want) && strings.Contains(err.Error(), dir+" ")):
		t.Errorf("%s: %v, want %q of %s", what, err, want, dir)
	}
}

// The agent trusts its data directory, so no other user may write to it.
func TestCheckDir(t *testing.T) {
	for _, test := range []struct {
		name         string
		mode         os.FileMode
		owner, group int
		want         string
	}{
		{name: "ours", mode: 0o711},
		{name: "of a group that is root's", mode: 0o775},
		{name: "of a group of strangers that may not write", mode: 0o755, group: otherUID},
		{name: "of a group of strangers", mode: 0o775, group: otherUID, want: "chmod g-w"},
		{name: "everybody's", mode: 0o777, want: "chmod o-w"},
		{name: "everybody's, like /tmp", mode: 0o777 | os.ModeSticky, want: "chmod o-w"},
		{name: "somebody else's", mode: 0o755, owner: otherUID, want: "belongs to user 12345"},
		{name: "nobody's", mode: 0o755, owner: overflowUID, want: "belongs to user 65534"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if os.Geteuid() != 0 && test.owner+test.group != 0 {
				t.Skip("only root can give directories away")
			}
			root := makeEntries(t, []testDirEntry{{path: "data", mode: test.mode, owner: test.owner, group: test.group}, {path: "link", to: "data"}})
			for _, path := range []string{"data", "link"} {
				checkError(t, path, CheckDir(filepath.Join(root, path)), filepath.Join(root, "data"), test.want)
			}
		})
	}
}

// CheckParents rejects a path if another user may replace one of its parent directories, or
// a link on the way to it.
func TestCheckParents(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	safe := testDirEntry{path: "a", mode: 0o755}
	shared := testDirEntry{path: "tmp", mode: 0o777 | os.ModeSticky}
	for _, test := range []struct {
		name     string
		entries  []testDirEntry
		path     string
		of, want string // directory and reason in the error; empty means no error
	}{
		{"ours", []testDirEntry{safe}, "a/data", "", ""},
		{"where everybody may make directories", []testDirEntry{{path: "a", mode: 0o777 | os.ModeSticky}}, "a/data", "", ""},
		{"where everybody may replace it", []testDirEntry{{path: "a", mode: 0o777}}, "a/data", "a", "chmod o-w"},
		{"of a stranger", []testDirEntry{{path: "a", mode: 0o755, owner: otherUID}}, "a/data", "a", "belongs to user 12345"},
		{"of a stranger, sticky", []testDirEntry{{path: "a", mode: 0o755 | os.ModeSticky, owner: otherUID}}, "a/data", "a", "belongs to user 12345"},
		{"of a group", []testDirEntry{{path: "a", mode: 0o775, group: otherUID}}, "a/data", "a", "all of group 12345"},
		{"of a group, sticky", []testDirEntry{{path: "a", mode: 0o775 | os.ModeSticky, group: otherUID}}, "a/data", "", ""},
		{"of a group that is root's", []testDirEntry{{path: "a", mode: 0o775}}, "a/data", "", ""},
		{"that belongs to the account nobody", []testDirEntry{{path: "a", mode: 0o755, owner: overflowUID}}, "a/data", "a", "belongs to user 65534"},
		{"behind a link", []testDirEntry{{path: "a", mode: 0o777}}, "link", "a", "chmod o-w"},
		{"where the link is", []testDirEntry{safe, {path: "b", mode: 0o777}, {path: "b/link", to: "../a/data"}}, "b/link", "b", "chmod o-w"},
		{"where a link that a link leads to is", []testDirEntry{safe, {path: "b", mode: 0o755, owner: otherUID}, {path: "b/two", to: "ROOT/a/data"}, {path: "one", to: "b/two"}},
			"one", "b", "belongs to user 12345"},
		{"where a directory on the way is a link", []testDirEntry{safe, {path: "b", mode: 0o777}, {path: "b/a", to: "../a"}}, "b/a/data", "b", "chmod o-w"},
		{"that a link goes through and leaves", []testDirEntry{safe, {path: "b", mode: 0o777}, {path: "b/c", mode: 0o755}, {path: "one", to: "b/c/../../a"}}, "one/data", "b", "chmod o-w"},
		{"the link of a stranger", []testDirEntry{safe, shared, {path: "tmp/link", to: "ROOT/a/data", owner: otherUID}}, "tmp/link", "tmp/link", "belongs to user 12345"},
		{"a link of ours where everybody makes links", []testDirEntry{safe, shared, {path: "tmp/link", to: "ROOT/a/data"}}, "tmp/link", "", ""},
		{"the link of a stranger where only we make links", []testDirEntry{safe, {path: "unpacked", to: "a/data", owner: otherUID}}, "unpacked", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := makeEntries(t, append(test.entries, testDirEntry{path: "a/data", mode: 0o755}, testDirEntry{path: "link", to: "a/data"}))
			path, blamed := filepath.Join(root, test.path), filepath.Join(root, test.of)
			checkError(t, "parents", CheckParents(path), blamed, test.want)
			checkError(t, "parents of a file in it", CheckParents(path+"/."), blamed, test.want)
			checkError(t, "directory", CheckDir(path), blamed, test.want)
			t.Chdir(root)
			checkError(t, "relative", CheckParents(test.path), blamed, test.want)
		})
	}
}

func TestLinkLoop(t *testing.T) {
	root := makeEntries(t, []testDirEntry{{path: "a", to: "b"}, {path: "b", to: "a"}})
	if err := CheckParents(root + "/a"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("got %v, want %v", err, unix.ELOOP)
	}
}

// The group bits of a directory with an ACL are the maximum for all users of the ACL.
func TestDirectoryWithACL(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root trusts the group of root")
	}
	root := makeEntries(t, []testDirEntry{{path: "a", mode: 0o755}, {path: "a/data", mode: 0o755}})
	const undefinedACLID = 1<<32 - 1
	acl := []byte{2, 0, 0, 0}
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, undefinedACLID}, {2, 7, otherUID}, {4, 5, undefinedACLID}, {0x10, 7, undefinedACLID}, {0x20, 5, undefinedACLID}} {
		acl = append(acl, byte(e.tag), byte(e.tag>>8), byte(e.perm), byte(e.perm>>8), byte(e.id), byte(e.id>>8), byte(e.id>>16), byte(e.id>>24))
	}
	for _, dir := range []string{root + "/a/data", root + "/a"} {
		if err := unix.Setxattr(dir, "system.posix_acl_access", acl, 0); errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		checkError(t, dir, CheckDir(root+"/a/data"), dir, "may write")
	}
}

// Without root, the agent accepts directories that it or root owns, even if their group may
// write: some users have group-writable home directories.
func TestUnprivilegedUserOwnsDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes other users")
	}
	const us = 4001
	root := makeEntries(t, []testDirEntry{
		{path: "home", mode: 0o775, owner: us, group: 100},
		{path: "home/data", mode: 0o755, owner: us, group: us},
		{path: "home/theirs", mode: 0o755, owner: otherUID},
		{path: "home/theirs/data", mode: 0o755, owner: us},
	})
	runAsUser(t, us, func() error { return errors.Join(CheckDir(root+"/home/data"), CheckParents(root+"/home/data")) }, "")
	runAsUser(t, us, func() error { return CheckParents(root + "/home/theirs/data") }, "belongs to user 12345")
	checkError(t, "as root", CheckParents(root+"/home/data"), root+"/home", "belongs to user 4001")
}

// runAsUser calls f on a thread that has the uid and no capabilities.
func runAsUser(t *testing.T, uid int, f func() error, want string) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the locked thread exits with its goroutine
		id := uintptr(uid)
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			// RawSyscall changes only this thread; functions of package syscall change all
			// threads
			if _, _, errno := unix.RawSyscall(call, id, id, id); errno != 0 {
				done <- errno
				return
			}
		}
		done <- f()
	}()
	err := <-done
	if got := fmt.Sprint(err); (err == nil) != (want == "") || !strings.Contains(got, want) && want != "" {
		t.Errorf("as user %d: %v, want %q", uid, err, want)
	}
}

// In a user namespace, 65534 is the owner of files whose owner has no id there, such as
// /.
func TestUserNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	root := makeEntries(t, []testDirEntry{{path: "a", mode: 0o755, owner: otherUID, group: otherUID}, {path: "a/data", mode: 0o755}})
	for _, path := range []string{root + "/a/data", root} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{envCheckPath + "=" + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 4001, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 4001, Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			t.Skip(err)
		}
		if err != nil {
			t.Errorf("%s: %v: %s", path, err, out)
		}
	}
}
