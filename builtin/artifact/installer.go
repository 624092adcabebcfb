package artifact

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/taskuser"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// destination is the path of an artifact in one of the two directories that a
// task may write to.
type destination struct {
	rootDir    string // path of the task directory, or of the shared alloc directory
	pathInRoot string // slash-separated path relative to root
}

// parseDestination returns the destination for a job's path, in which references
// are already resolved.
func parseDestination(dir hook.TaskDir, text string) (destination, error) {
	if strings.ContainsRune(text, 0) {
		return destination{}, errors.New("the destination has a zero byte")
	}
	full := filepath.Clean(text)
	roots := []string{dir.Dir, dir.SharedAllocDir}
	if !filepath.IsAbs(full) || !slices.ContainsFunc(roots, func(root string) bool { return isWithinDir(full, root) }) {
		full = filepath.Join(dir.Dir, full)
	}
	for _, root := range roots {
		if isWithinDir(full, root) {
			rest, err := filepath.Rel(root, full)
			return destination{root, filepath.ToSlash(rest)}, err
		}
	}
	return destination{}, fmt.Errorf("destination %q escapes the directory of the task", text)
}

// isWithinDir reports whether the clean path p is dir or is inside it.
func isWithinDir(p, dir string) bool {
	return dir != "" && (p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/"))
}

// fileOwner is the owner of an artifact's files; nil means no change of the owner.
type fileOwner struct{ uid, gid int }

// lookupFileOwner returns the owner of an artifact's files: the user of the task if
// chownToTaskUser is true, else root, like the other files in a task's directory. It returns nil
// if the agent is not root: it cannot change owners then.
func lookupFileOwner(chownToTaskUser bool, taskUser string) (*fileOwner, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if !chownToTaskUser || taskUser == "" {
		return &fileOwner{0, 0}, nil
	}
	cred, err := taskuser.Lookup(taskUser)
	if err != nil {
		return nil, fmt.Errorf("chown: %w", err)
	}
	return &fileOwner{int(cred.Uid), int(cred.Gid)}, nil
}

// installer has the staging directory of a download, and moves the inspected
// result to the destination.
type installer struct {
	destination         destination
	owner               *fileOwner
	destinationRoot     *os.Root // root directory of the destination
	stagingDirName      string   // name of the staging directory in destinationRoot
	stagingRoot         *os.Root
	stagingDir          *os.File // open handle of the staging directory
	removedModeBitTexts []string // descriptions of removed special mode bits, such as: the setuid bit of "x"

	entryModesInWalkOrder []fs.FileMode // modes of the files and directories of the result, in the order of takeOwnershipAndCheckFiles's walk
}

// newInstallerWithStagingDir makes the staging directory of a download, on the file system of
// the destination.
func newInstallerWithStagingDir(dest destination, taskName, artifactHash string, owner *fileOwner) (*installer, error) {
	root, err := os.OpenRoot(dest.rootDir)
	if err != nil {
		return nil, err
	}
	p := &installer{destination: dest, owner: owner, destinationRoot: root}
	// The task name is hashed, because it may have the maximum length of a file
	// name.
	of := sha256.Sum256([]byte(taskName))
	if err := p.replaceOldStagingDirs(".artifact-" + hex.EncodeToString(of[:8]) + "-" + artifactHash + "-"); err != nil {
		p.closeAndRemoveStagingDir()
		return nil, fmt.Errorf("make room for the download: %w", err)
	}
	return p, nil
}

// replaceOldStagingDirs makes the staging directory, and removes the staging directories that earlier downloads of
// the same artifact have left. The new directory has a unique name, because an earlier
// download may still be shutting down, and must not find it under its own name.
func (p *installer) replaceOldStagingDirs(namePrefix string) error {
	old, err := fs.Glob(p.destinationRoot.FS(), namePrefix+"*")
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := p.destinationRoot.RemoveAll(name); err != nil {
			return err
		}
	}
	p.stagingDirName = namePrefix + rand.Text()
	if err := p.destinationRoot.Mkdir(p.stagingDirName, 0o700); err != nil {
		return err
	}
	if p.stagingRoot, err = p.destinationRoot.OpenRoot(p.stagingDirName); err != nil {
		return err
	}
	p.stagingDir, err = p.stagingRoot.Open(".")
	return err
}

// closeAndRemoveStagingDir closes the open directories and removes the staging directory.
func (p *installer) closeAndRemoveStagingDir() {
	if p.stagingDir != nil {
		p.stagingDir.Close()
	}
	if p.stagingRoot != nil {
		p.stagingRoot.Close()
	}
	if p.stagingDirName != "" {
		_ = p.destinationRoot.RemoveAll(p.stagingDirName) // after an error, the next download or the removal of the alloc directory removes the rest
	}
	p.destinationRoot.Close()
}

// install moves the result of the download to its destination, if takeOwnershipAndCheckFiles allows all files,
// and returns the path of one installed file or directory. Existing files are replaced; directories
// are merged.
func (p *installer) install() (installedPath string, err error) {
	if err := p.takeOwnershipAndCheckFiles(); err != nil {
		return "", err
	}
	if err := p.setOwnersAndModes(); err != nil {
		return "", err
	}
	info, err := p.stagingRoot.Lstat(resultFileName)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		if err := p.makeDestinationDirs(path.Dir(p.destination.pathInRoot)); err != nil {
			return "", err
		}
		return filepath.Join(p.destination.rootDir, p.destination.pathInRoot), p.moveEntry(resultFileName, p.destination.pathInRoot)
	}
	if err := p.makeDestinationDirs(p.destination.pathInRoot); err != nil {
		return "", err
	}
	entries, err := fs.ReadDir(p.stagingRoot.FS(), resultFileName)
	if err != nil {
		return "", err
	}
	first := p.destination.pathInRoot
	for i, e := range entries {
		if i == 0 {
			first = path.Join(p.destination.pathInRoot, e.Name())
		}
		if err := p.moveEntry(path.Join(resultFileName, e.Name()), path.Join(p.destination.pathInRoot, e.Name())); err != nil {
			return "", err
		}
	}
	return filepath.Join(p.destination.rootDir, first), nil
}

// makeDestinationDirs makes a directory and its parents.
func (p *installer) makeDestinationDirs(dirInRoot string) error {
	if dirInRoot == "." {
		return nil
	}
	info, err := p.destinationRoot.Stat(dirInRoot)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		return fmt.Errorf("destination %q is no directory", dirInRoot)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("destination %q: %w", dirInRoot, err)
	}
	if err := p.makeDestinationDirs(path.Dir(dirInRoot)); err != nil {
		return err
	}
	if err := p.destinationRoot.Mkdir(dirInRoot, 0o755); err != nil {
		return err
	}
	return p.setOwnerOfEntry(p.destinationRoot, dirInRoot)
}

func (p *installer) setOwnerOfEntry(root *os.Root, name string) error {
	if p.owner == nil {
		return nil
	}
	return root.Lchown(name, p.owner.uid, p.owner.gid)
}

// takeOwnershipAndCheckFiles checks the files of the download again, because the process of the
// download may have been compromised. If the agent is root, takeOwnershipAndCheckFiles first
// takes ownership of each entry, and of each directory before it lists the
// directory, so that the process can no longer change the entries.
func (p *installer) takeOwnershipAndCheckFiles() error {
	p.entryModesInWalkOrder = nil
	type inode struct{ dev, ino uint64 }
	names := map[inode]uint64{}
	modes := map[inode]fs.FileMode{}
	links := map[inode]uint64{}
	linked := map[inode]string{}
	err := fs.WalkDir(p.stagingRoot.FS(), resultFileName, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := p.stagingRoot.Lstat(name)
		if err != nil {
			return err
		}
		inside := strings.TrimPrefix(strings.TrimPrefix(name, resultFileName), "/")
		mode, sys := info.Mode(), info.Sys().(*syscall.Stat_t)
		if of := (inode{sys.Dev, sys.Ino}); !mode.IsDir() && sys.Nlink > 1 {
			if first, ok := modes[of]; ok {
				mode = first // the mode before giveEntryExclusivelyToRoot changed it under the file's first name
			}
			names[of]++
			modes[of], links[of], linked[of] = mode, uint64(sys.Nlink), inside
		}
		p.entryModesInWalkOrder = append(p.entryModesInWalkOrder, mode)
		if err := p.giveEntryExclusivelyToRoot(name, mode); err != nil {
			return fmt.Errorf("take %q from the download: %w", inside, err)
		}
		switch {
		case strings.Count(inside, "/") > maxDirDepth:
			return fmt.Errorf("artifact includes directories that are nested more than %d deep", maxDirDepth)
		case mode.Type() == fs.ModeSymlink:
			target, err := p.stagingRoot.Readlink(name)
			if err != nil {
				return err
			}
			if err := checkSymlinkTarget(inside, target); err != nil {
				return fmt.Errorf("artifact includes symlink that resolves outside of sandbox: %w", err)
			}
		case mode.IsRegular(), mode.IsDir():
			if mode&specialModeBits != 0 {
				p.removedModeBitTexts = append(p.removedModeBitTexts, fmt.Sprintf("the %s bit of %q", describeSpecialModeBit(mode), inside))
			}
		default:
			return fmt.Errorf("artifact includes %q, which is %s", inside, describeUnsupportedFileType(mode))
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A file with a hard link outside of the artifact must not get another owner.
	for of, n := range names {
		if n != links[of] {
			return fmt.Errorf("artifact includes hard link %q to a file outside of it", linked[of])
		}
	}
	return nil
}

// removedModeBitsMessage returns the message of an event about the special mode bits
// that install has removed, or "". It is a single message because a task keeps
// only ten events.
func (p *installer) removedModeBitsMessage() string {
	const maxListedBits = 3
	switch more := len(p.removedModeBitTexts) - maxListedBits; {
	case len(p.removedModeBitTexts) == 0:
		return ""
	case more > 0:
		return fmt.Sprintf("removed %s and %d more", strings.Join(p.removedModeBitTexts[:maxListedBits], ", "), more)
	}
	return "removed " + strings.Join(p.removedModeBitTexts, ", ")
}

// setOwnersAndModes sets the owner of all files and directories, and makes them
// readable for the owner. It removes special mode bits.
func (p *installer) setOwnersAndModes() error {
	modes := p.entryModesInWalkOrder
	return fs.WalkDir(p.stagingRoot.FS(), resultFileName, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := modes[0].Perm() | 0o400
		modes = modes[1:]
		if err := p.setOwnerOfEntry(p.stagingRoot, name); err != nil || e.Type() == fs.ModeSymlink {
			return err
		}
		if e.IsDir() {
			mode |= 0o700
		}
		return p.stagingRoot.Chmod(name, mode)
	})
}

// moveEntry moves a file, or a directory with its content, from the staging
// directory to the destination.
func (p *installer) moveEntry(from, to string) error {
	info, err := p.stagingRoot.Lstat(from)
	if err != nil {
		return err
	}
	old, err := p.destinationRoot.Lstat(to)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && old.IsDir() && !info.IsDir():
		return fmt.Errorf("%q is a directory already, and a file of the artifact", to)
	case err == nil && !old.IsDir() && info.IsDir():
		if err := p.destinationRoot.Remove(to); err != nil {
			return err
		}
	case err == nil && info.IsDir():
		return p.mergeDirIntoDestination(from, to)
	}
	err = p.renameEntry(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	return p.copyEntry(from, to, info)
}

// renameEntry renames relative to open directories instead of by path: in the
// directory above the staging directory, another user may be able to replace it.
func (p *installer) renameEntry(from, to string) error {
	fromDir, err := p.stagingRoot.Open(path.Dir(from))
	if err != nil {
		return err
	}
	defer fromDir.Close()
	toDir, err := p.destinationRoot.Open(path.Dir(to))
	if err != nil {
		return err
	}
	defer toDir.Close()
	err = unix.Renameat(int(fromDir.Fd()), path.Base(from), int(toDir.Fd()), path.Base(to))
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

func (p *installer) mergeDirIntoDestination(from, to string) error {
	entries, err := fs.ReadDir(p.stagingRoot.FS(), from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := p.moveEntry(path.Join(from, e.Name()), path.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// copyEntry copies a file or directory to a destination on another file system, for example to the
// secrets directory, where it cannot be renamed.
func (p *installer) copyEntry(from, to string, info fs.FileInfo) error {
	var err error
	switch {
	case info.IsDir():
		if err = p.destinationRoot.Mkdir(to, info.Mode().Perm()); err == nil {
			err = p.mergeDirIntoDestination(from, to)
		}
	case info.Mode().Type() == fs.ModeSymlink:
		_ = p.destinationRoot.Remove(to) // if Remove fails, Symlink returns an error because the name exists
		var linkTarget string
		if linkTarget, err = p.stagingRoot.Readlink(from); err == nil {
			err = p.destinationRoot.Symlink(linkTarget, to)
		}
	default:
		err = p.copyFile(from, to, info.Mode().Perm())
	}
	if err != nil {
		return err
	}
	return p.setOwnerOfEntry(p.destinationRoot, to)
}

func (p *installer) copyFile(from, to string, mode fs.FileMode) error {
	r, err := p.stagingRoot.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	_ = p.destinationRoot.Remove(to) // if Remove fails, OpenFile returns an error because the name exists
	w, err := p.destinationRoot.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	return errors.Join(w.Chmod(mode), w.Close())
}
