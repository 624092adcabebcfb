package safepath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A name that another user replaces by a link does not make the agent open another file.
func TestOpenAtFollowsNoLink(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"data", "outside"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "outside/file"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"file": "../outside/file", "dir": "../outside", "none": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(root, "data", link)); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := OpenDir(filepath.Join(root, "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	for _, test := range []struct {
		name, file string
		flags      int
		want       error
	}{
		{"a file", "file", unix.O_RDONLY, unix.ELOOP},
		{"a file for writing", "file", unix.O_RDWR | unix.O_NONBLOCK, unix.ELOOP},
		{"a file that is created", "none", unix.O_WRONLY | unix.O_CREAT, unix.ELOOP},
		{"a new file", "none", unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL, unix.EEXIST},
		{"a directory", "dir", unix.O_RDONLY | unix.O_DIRECTORY, unix.ENOTDIR},
		{"the handle of a directory", "dir", unix.O_PATH | unix.O_DIRECTORY, unix.ENOTDIR},
	} {
		t.Run(test.name, func(t *testing.T) {
			fd, err := OpenAt(dir, test.file, test.flags, 0o600)
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if err == nil {
				unix.Close(fd)
			}
		})
	}
	fd, err := OpenAt(dir, "file", unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var openedStat unix.Stat_t
	if err := unix.Fstat(fd, &openedStat); err != nil || openedStat.Mode&unix.S_IFMT != unix.S_IFLNK {
		t.Errorf("the handle of a link has mode %o, %v: want the link itself", openedStat.Mode, err)
	}
	st, err := StatAt(dir, "file")
	if err != nil || st.Ino != openedStat.Ino {
		t.Errorf("StatAt describes inode %d, %v: want the link, %d", st.Ino, err, openedStat.Ino)
	}
	if _, err := os.Stat(filepath.Join(root, "data/nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was created behind a link: %v", err)
	}
}

// ProcPath still leads to a directory after the directory was renamed.
func TestProcPathSurvivesRename(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(root+"/a", 0o700), os.WriteFile(root+"/a/file", []byte("text"), 0o600)); err != nil {
		t.Fatal(err)
	}
	dir, err := OpenDir(root + "/a")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	if err := errors.Join(os.Rename(root+"/a", root+"/b"), os.Mkdir(root+"/a", 0o700)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(ProcPathAt(dir, "file")); string(got) != "text" {
		t.Errorf("read %q, %v", got, err)
	}
}

// Processes that the agent starts do not inherit a handle.
func TestHandlesAreNotInherited(t *testing.T) {
	dir, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	child, err := OpenAt(dir, "file", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	for _, fd := range []int{dir, child} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %#x, %v: want FD_CLOEXEC", flags, err)
		}
	}
}
