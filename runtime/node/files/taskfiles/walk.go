package taskfiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// Path limits: a task could create an endless chain of links, or make the agent keep any number of directories open.
const (
	maxLinks = 40
	maxDepth = 100
)

// walkPosition is the file reached by Dir.walkPath. It keeps all directories on the path open, so that ".." returns to the
// opened directory, even if a task has moved it.
type walkPosition struct {
	rootFD       int      // the allocation directory's descriptor; close does not close it
	openFDs      []int    // O_PATH descriptors for the files on the path, one per name
	pathElements []string // path elements from the allocation's directory, with links resolved

	hostMountDepth int // len(pathElements) at the first mounted host file; 0 if the path crosses no such mount
}

// walkPath opens a path's file. It follows links that stay inside the allocation's directory, including absolute links,
// which tasks make with the paths in their environment.
func (d *AllocDir) walkPath(path string) (_ *walkPosition, err error) {
	p := &walkPosition{rootFD: d.fd}
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
			if len(p.openFDs) == 0 {
				return nil, ErrPathEscapes
			}
			p.leaveDir()
			continue
		}
		fd, err := safepath.OpenAt(p.currentFD(), pathElement, unix.O_PATH, 0)
		if err != nil {
			return nil, err
		}
		target, isLink, err := readLinkFD(fd)
		if err != nil || isLink {
			unix.Close(fd)
		}
		switch {
		case err != nil:
			return nil, err
		case !isLink && len(p.openFDs) == maxDepth:
			unix.Close(fd)
			return nil, unix.ENAMETOOLONG
		case !isLink:
			if err := p.enterFile(fd, pathElement); err != nil {
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
			for len(p.openFDs) > 0 {
				p.leaveDir()
			}
			target = inside
		}
		rest = target + "/" + rest
	}
	return p, nil
}

// readLinkFD returns an open symbolic link's target, and isLink false for another file. The text of a magic link in /proc
// need not be a path.
func readLinkFD(fd int) (target string, isLink bool, err error) {
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

// enterFile moves the position to fd, a file opened in the current directory by name. The position owns fd.
func (p *walkPosition) enterFile(fd int, name string) error {
	parent := p.currentFD()
	p.openFDs, p.pathElements = append(p.openFDs, fd), append(p.pathElements, name)
	if p.hostMountDepth > 0 || len(p.pathElements) < 2 || slices.Contains(agentMountedDirs, p.pathElements[1]) {
		return nil
	}
	mounted, err := safepath.IsMount(parent, fd)
	if mounted {
		p.hostMountDepth = len(p.pathElements)
	}
	return err
}

// agentMountedDirs are the directories in a task's directory on which the agent mounts the allocation's own files, or a
// tmpfs: other mounts show host files.
var agentMountedDirs = []string{"alloc", "secrets", "private"}

// leaveDir moves the position to the parent directory.
func (p *walkPosition) leaveDir() {
	if p.hostMountDepth == len(p.pathElements) {
		p.hostMountDepth = 0
	}
	last := len(p.openFDs) - 1
	unix.Close(p.openFDs[last])
	p.openFDs, p.pathElements = p.openFDs[:last], p.pathElements[:last]
}

func (p *walkPosition) close() {
	for len(p.openFDs) > 0 {
		p.leaveDir()
	}
}

// currentFD returns the current file's O_PATH descriptor. The position keeps it.
func (p *walkPosition) currentFD() int {
	if len(p.openFDs) == 0 {
		return p.rootFD
	}
	return p.openFDs[len(p.openFDs)-1]
}

// protectedKind returns the ProtectedFileError kind for the current file, or "" if clients may read it. The secret
// directories' names are matched without regard to case, as in Nomad.
func (p *walkPosition) protectedKind() string {
	switch {
	case len(p.pathElements) == 1 && strings.HasPrefix(p.pathElements[0], "."):
		return "agent"
	case len(p.pathElements) < 2:
		return ""
	}
	if p.hostMountDepth > 0 {
		return "host"
	}
	switch name := p.pathElements[1]; {
	case strings.EqualFold(name, "secrets"):
		return "secret"
	case strings.EqualFold(name, "private"):
		return "private"
	}
	return ""
}

// openForReading opens the current file for reading.
func (p *walkPosition) openForReading() (*os.File, error) {
	fd, err := unix.Open(safepath.ProcPath(p.currentFD()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// The descriptor is blocking again, because reads from a regular file never wait, and Go's poller does not support regular
	// files.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), strings.Join(p.pathElements, "/")), nil
}
