//go:build linux

package osprocess

import (
	"os"

	"golang.org/x/sys/unix"
)

// ReadSmallFile reads a file of the kernel, such as one of a process or of a cgroup, without an allocation if the content is
// smaller than buf, which it uses. It is for files that are read for each task regularly. The errors are those of os.ReadFile.
func ReadSmallFile(path string, buf []byte) ([]byte, error) {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	read := 0
	for read < len(buf) {
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, buf[read:]) })
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return buf[:read], nil
		}
		read += n
	}
	return os.ReadFile(path)
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
