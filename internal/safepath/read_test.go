package safepath

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(path("small"), []byte("12345678"), 0o600), os.WriteFile(path("large"), []byte("123456789"), 0o600),
		os.WriteFile(path("sparse"), nil, 0o600), os.Truncate(path("sparse"), 1<<40), unix.Mkfifo(path("fifo"), 0o600),
		os.Symlink("small", path("link")), os.Symlink(".", path("here")), os.Mkdir(path("dir"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if text, err := ReadFile(path("small"), 8); err != nil || string(text) != "12345678" {
		t.Errorf("%q, %v", text, err)
	}
	for name, want := range map[string]string{
		path("large"):      path("large") + " has more than the allowed 8 bytes",
		path("sparse"):     path("sparse") + " has more than the allowed 8 bytes",
		path("fifo"):       path("fifo") + " is not a regular file",
		path("dir"):        path("dir") + " is not a regular file",
		path("link"):       path("link") + " has become a symbolic link",
		path("here/small"): path("here/small") + " has become a symbolic link",
		path("none"):       "open " + path("none") + ": no such file or directory",
		"/dev/zero":        "/dev/zero is not a regular file",
		"/proc/self/mem":   "/proc/self/mem has become a symbolic link",
	} {
		if text, err := ReadFile(name, 8); err == nil || err.Error() != want {
			t.Errorf("%q, %v; want the error %s", text, err, want)
		}
	}
}
