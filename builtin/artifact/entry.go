package artifact

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// staysInDir reports whether a slash-separated path stays in its directory.
func staysInDir(relativePath string) bool {
	relativePath = path.Clean(relativePath)
	return relativePath != ".." && !strings.HasPrefix(relativePath, "../") && !path.IsAbs(relativePath)
}

// The limits protect against archives with deep directories or long paths: each
// level costs a system call in each walk.
const (
	maxDirDepth   = 256
	maxNameLength = 4096
)

// validateAndCleanEntryName rejects the name of an entry that leads out of the artifact, is empty, too long or
// too deep, or has a zero byte. It returns the clean name.
func validateAndCleanEntryName(name string) (string, error) {
	switch {
	case len(name) > maxNameLength:
		return "", fmt.Errorf("the name of entry %q… is longer than %d bytes", name[:64], maxNameLength)
	case strings.Count(name, "/") > maxDirDepth:
		return "", fmt.Errorf("entry %q… lies more than %d directories deep", name[:64], maxDirDepth)
	case name == "":
		return "", fmt.Errorf("an entry has no name")
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("the name of entry %q has a zero byte", name)
	case path.IsAbs(name):
		return "", fmt.Errorf("entry %q has an absolute path", name)
	case !staysInDir(name) || strings.Contains("/"+name+"/", "/../"):
		return "", fmt.Errorf("entry %q leads out of the artifact with \"..\"", name)
	}
	return path.Clean(name), nil
}

// checkSymlinkTarget rejects a symbolic link that leads out of the artifact. In the
// target, ".." is allowed only at the start, so that the check holds wherever
// the artifact is moved, and whatever the other names are.
func checkSymlinkTarget(linkName, target string) error {
	switch {
	case path.IsAbs(target):
		return fmt.Errorf("symbolic link %q leads to the absolute path %q", linkName, target)
	case !staysInDir(path.Join(path.Dir(linkName), target)):
		return fmt.Errorf("symbolic link %q leads out of the artifact, to %q", linkName, target)
	}
	seenName := false
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." && seenName {
			return fmt.Errorf("symbolic link %q leads up through other names, to %q", linkName, target)
		}
		seenName = seenName || part != "" && part != "." && part != ".."
	}
	return nil
}

// describeUnsupportedFileType returns the type of a file that is not allowed in an
// artifact, for an error message.
func describeUnsupportedFileType(mode fs.FileMode) string {
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

// specialModeBits are the mode bits that are removed from downloaded files.
const specialModeBits = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// describeSpecialModeBit returns the names of the special mode bits, for a
// message.
func describeSpecialModeBit(mode fs.FileMode) string {
	if mode&fs.ModeSetuid != 0 {
		return "setuid"
	}
	if mode&fs.ModeSetgid != 0 {
		return "setgid"
	}
	return "sticky"
}
