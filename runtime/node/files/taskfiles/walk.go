package taskfiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// Limits of a path: a task could create an endless chain of links, or make the agent keep any
// number of directories open.
const (
	maxLinks = 40
	maxDepth = 100
)

// walkPosition is the current position of a walk. It keeps all directories on the path open, so that ".."
// returns to the directory that was opened, even if a task has moved it.
type walkPosition struct {
	root  int      // descriptor of the directory of the allocation; walkPosition does not close it
	fds   []int    // O_PATH, one per name
	names []string // the path from the root, without links

	hostDepth int // number of names up to a directory of the host that is mounted for a task; 0 if there is none
}

// walk resolves a path. It follows links that stay inside the directory, including
// absolute links, which tasks make with the paths in their environment.
func (d *Dir) walk(path string) (_ *walkPosition, err error) {
	p := &walkPosition{root: d.fd}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	links := 0
	for rest := path; rest != ""; {
		var pathElement string
		pathElement, rest, _ = strings.Cut(rest, "/")
		switch pathElement {
		case "", ".":
			continue
		case "..":
			if len(p.fds) == 0 {
				return nil, ErrPathEscapes
			}
			p.leaveDir()
			continue
		}
		fd, err := safepath.OpenAt(p.fd(), pathElement, unix.O_PATH, 0)
		if err != nil {
			return nil, err
		}
		target, isLink, err := linkTarget(fd)
		if err != nil || isLink {
			unix.Close(fd)
		}
		switch {
		case err != nil:
			return nil, err
		case !isLink && len(p.fds) == maxDepth:
			unix.Close(fd)
			return nil, unix.ENAMETOOLONG
		case !isLink:
			if err := p.enter(fd, pathElement); err != nil {
				return nil, err
			}
			continue
		}
		if links++; links > maxLinks {
			return nil, unix.ELOOP
		}
		if filepath.IsAbs(target) {
			inside, ok := strings.CutPrefix(target+"/", d.path+"/")
			if !ok {
				return nil, ErrPathEscapes
			}
			for len(p.fds) > 0 {
				p.leaveDir()
			}
			target = inside
		}
		rest = target + "/" + rest
	}
	return p, nil
}

// linkTarget returns the target of an open link as text. The target of a magic link in /proc need
// not be a path.
func linkTarget(fd int) (target string, isLink bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", false, nil
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	return string(buf[:max(n, 0)]), true, err
}

// enter moves the position to a file that was opened in its directory.
func (p *walkPosition) enter(fd int, name string) error {
	parent := p.fd()
	p.fds, p.names = append(p.fds, fd), append(p.names, name)
	if p.hostDepth > 0 || len(p.names) < 2 || slices.Contains(mountedNames, p.names[1]) {
		return nil
	}
	mounted, err := safepath.IsMount(parent, fd)
	if mounted {
		p.hostDepth = len(p.names)
	}
	return err
}

// mountedNames are the directories of a task on which the agent mounts the allocation's own files.
var mountedNames = []string{"alloc", "secrets", "private"}

func (p *walkPosition) leaveDir() {
	if p.hostDepth == len(p.names) {
		p.hostDepth = 0
	}
	last := len(p.fds) - 1
	unix.Close(p.fds[last])
	p.fds, p.names = p.fds[:last], p.names[:last]
}

func (p *walkPosition) close() {
	for len(p.fds) > 0 {
		p.leaveDir()
	}
}

// fd returns a handle (O_PATH) of the current position.
func (p *walkPosition) fd() int {
	if len(p.fds) == 0 {
		return p.root
	}
	return p.fds[len(p.fds)-1]
}

// protectedKind returns why the content of the current position must not be read, or
// "". Below a task, Nomad's names are matched without regard to case, as in Nomad.
func (p *walkPosition) protectedKind() string {
	if len(p.names) < 2 {
		return ""
	}
	if p.hostDepth > 0 {
		return "host"
	}
	switch name := p.names[1]; {
	case strings.EqualFold(name, "secrets"):
		return "secret"
	case strings.EqualFold(name, "private"):
		return "private"
	}
	return ""
}

// openForReading opens the file of the current position for reading.
func (p *walkPosition) openForReading() (*os.File, error) {
	fd, err := unix.Open(safepath.ProcPath(p.fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// The descriptor is blocking again, because reads of a regular file never wait, and
	// Go's poller does not support regular files.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), strings.Join(p.names, "/")), nil
}
