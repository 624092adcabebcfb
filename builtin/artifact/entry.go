package artifact

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// local reports whether a slash-separated path stays in its directory.
func local(name string) bool {
	name = path.Clean(name)
	return name != ".." && !strings.HasPrefix(name, "../") && !path.IsAbs(name)
}

// Limits for the depth of directories, and for the length of a path. Each level
// costs a system call in each walk.
const (
	maxDepth = 256
	maxName  = 4096
)

// checkName rejects the name of an entry that would not be inside the artifact,
// or that programs could not use.
func checkName(name string) (string, error) {
	switch {
	case len(name) > maxName:
		return "", fmt.Errorf("the name of entry %q… is longer than %d bytes", name[:64], maxName)
	case strings.Count(name, "/") > maxDepth:
		return "", fmt.Errorf("entry %q… lies more than %d directories deep", name[:64], maxDepth)
	case name == "":
		return "", fmt.Errorf("an entry has no name")
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("the name of entry %q has a zero byte", name)
	case path.IsAbs(name):
		return "", fmt.Errorf("entry %q has an absolute path", name)
	case !local(name) || strings.Contains("/"+name+"/", "/../"):
		return "", fmt.Errorf("entry %q leads out of the artifact with \"..\"", name)
	}
	return path.Clean(name), nil
}

// checkLink rejects a symbolic link that leads out of the artifact, wherever the
// artifact is moved: ".." must come first, so that the other names of the target
// do not matter.
func checkLink(name, target string) error {
	switch {
	case path.IsAbs(target):
		return fmt.Errorf("symbolic link %q leads to the absolute path %q", name, target)
	case !local(path.Join(path.Dir(name), target)):
		return fmt.Errorf("symbolic link %q leads out of the artifact, to %q", name, target)
	}
	named := false
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." && named {
			return fmt.Errorf("symbolic link %q leads up through other names, to %q", name, target)
		}
		named = named || part != "" && part != "." && part != ".."
	}
	return nil
}

// kindOf names a kind of file that is not allowed in an artifact.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "neither a file, a directory nor a link"
}

// special are the mode bits that downloaded files lose.
const special = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// specialBits returns the names of the special bits.
func specialBits(mode fs.FileMode) string {
	if mode&fs.ModeSetuid != 0 {
		return "setuid"
	}
	if mode&fs.ModeSetgid != 0 {
		return "setgid"
	}
	return "sticky"
}
