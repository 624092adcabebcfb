package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// mountEntry is a mount table line.
type mountEntry struct {
	parentID, device, root, mountPoint string
	isShared                           bool // the mount is in a peer group: mounts below it propagate to its copies
}

// octalUnescaper replaces the kernel's escapes for paths in a mount table.
var octalUnescaper = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// readMountByID returns this process's mount table as mount id -> line.
func readMountByID() (map[string]mountEntry, error) {
	return readMountTable("/proc/thread-self/mountinfo")
}

func readMountTable(file string) (map[string]mountEntry, error) {
	table, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	mounts := make(map[string]mountEntry)
	for line := range strings.Lines(string(table)) {
		const optional = 6 // the first optional field's index
		if f := strings.Fields(line); len(f) > optional {
			shared := slices.ContainsFunc(f[optional:], func(field string) bool { return strings.HasPrefix(field, "shared:") })
			mounts[f[0]] = mountEntry{parentID: f[1], device: f[2], root: octalUnescaper.Replace(f[3]), mountPoint: octalUnescaper.Replace(f[4]), isShared: shared}
		}
	}
	return mounts, nil
}

// realPath returns the directory's path in the mount table.
func realPath(h *dirHandle) (string, error) { return os.Readlink(h.procPath()) }

// maxUnmountPasses limits how often unmountBelow reads the mount table: a pass uncovers the mounts that others have covered.
const maxUnmountPasses = 64

// unmountBelow detaches the mounts below the directory that isSelected accepts by their paths relative to the directory. It finds
// them in the mount table, so it opens no task directory to search for them, and follows no link. It detaches a mount before its
// parent.
func (h *dirHandle) unmountBelow(isSelected func(relative string) bool) error {
	for range maxUnmountPasses {
		mounts, err := readMountByID()
		if err != nil {
			return err
		}
		dir, err := realPath(h)
		if err != nil {
			return err
		}
		idsByPath := make(map[string][]string)
		for id, m := range mounts {
			if relative, below := strings.CutPrefix(m.mountPoint, strings.TrimSuffix(dir, "/")+"/"); below && isSelected(relative) {
				idsByPath[relative] = append(idsByPath[relative], id)
			}
		}
		paths := make([]string, 0, len(idsByPath))
		for relative := range idsByPath {
			paths = append(paths, relative)
		}
		slices.Sort(paths) // a directory is before the directories in it
		progress := false
		var errs []error
		for _, relative := range slices.Backward(paths) {
			detached, err := detachMountInTable(h, relative, idsByPath[relative])
			progress = progress || detached
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); !progress {
			return err
		}
	}
	return h.wrapDirError("unmount everything below", errors.New("mounts appear again"))
}

// detachMountInTable detaches the uppermost mount at a path, if its id is in ids: the path may lead elsewhere since the table was
// read.
func detachMountInTable(h *dirHandle, relative string, ids []string) (detached bool, err error) {
	fd, err := safepath.OpenBeneath(h.fd, relative)
	if err != nil {
		return false, h.wrapChildError("open", relative, err)
	}
	defer unix.Close(fd)
	id, err := safepath.MountID(fd)
	if err == nil && !slices.Contains(ids, strconv.FormatUint(id, 10)) {
		err = errors.New("another mount covers the mount")
	}
	if err == nil {
		opcount.Count(opcount.Mount)
		err = unix.Unmount(safepath.ProcPath(fd), unix.MNT_DETACH)
	}
	return err == nil, h.wrapChildError("unmount", relative, err)
}

// FindAllocsWithMounts returns the given allocations for which UnmountAllocDirs would unmount something.
func FindAllocsWithMounts(allocsRoot string, allocIDs map[string]bool) (map[string]bool, error) {
	mounts, err := readMountByID()
	if err != nil {
		return nil, fmt.Errorf("find the mounts of allocations: %w", err)
	}
	found := make(map[string]bool)
	find := func(root string, possibleAllocIDs func(relative string) []string) error {
		dir, err := openTrustedDir(root)
		if err != nil {
			return ignoreMissing(err)
		}
		defer dir.close()
		realRoot, err := realPath(dir)
		if err != nil {
			return err
		}
		for _, m := range mounts {
			relative, below := strings.CutPrefix(m.mountPoint, realRoot+"/")
			if !below {
				continue
			}
			for _, id := range possibleAllocIDs(relative) {
				if allocIDs[id] {
					found[id] = true
				}
			}
		}
		return nil
	}
	err = errors.Join(find(allocsRoot, func(relative string) []string { return strings.SplitN(relative, "/", 2)[:1] }),
		find(allocsRoot+unveilMountsSuffix, possibleAllocIDsOfUnveilMount))
	if err != nil {
		return nil, fmt.Errorf("find the mounts of allocations: %w", err)
	}
	return found, nil
}

// possibleAllocIDsOfUnveilMount returns the allocation ids to which a mount below bindTaskDirsForUnveil's directory can belong.
// Its directory is named "<alloc id>-<task>" there. Without a UUID, either part can have a hyphen.
func possibleAllocIDsOfUnveilMount(relative string) (ids []string) {
	name, _, _ := strings.Cut(relative, "/")
	for i, c := range name {
		if c != '-' {
			continue
		}
		if uuid.Validate(name[:i]) == nil {
			return []string{name[:i]}
		}
		ids = append(ids, name[:i])
	}
	return ids
}

// UnmountAllocDirs unmounts everything below the allocation directories in allocsRoot, also what tasks have mounted there, except
// for the allocations that isKept reports. No task of the others may be running. It leaves BindAllocsRootNosuidNodev's mount, and
// does nothing if the directory does not exist.
func UnmountAllocDirs(allocsRoot string, isKept func(allocID string) bool) error {
	inAllocsRoot := func(relative string) bool {
		allocID, _, _ := strings.Cut(relative, "/")
		return !isKept(allocID)
	}
	inUnveilMountsRoot := func(relative string) bool {
		return !slices.ContainsFunc(possibleAllocIDsOfUnveilMount(relative), isKept)
	}
	err := errors.Join(unmountBelowPath(allocsRoot, inAllocsRoot), unmountBelowPath(allocsRoot+unveilMountsSuffix, inUnveilMountsRoot))
	if err != nil {
		return fmt.Errorf("unmount the directories of tasks: %w", err)
	}
	return nil
}

// unmountBelowPath calls unmountBelow for a directory that only the agent and the operator can replace. It does nothing if the
// directory does not exist.
func unmountBelowPath(path string, isSelected func(relative string) bool) error {
	dir, err := openTrustedDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	return dir.unmountBelow(isSelected)
}

// DropAllSecretsAndUnmount does what DropSecretsAndUnmount does, for all tasks with a directory, and unmounts everything else
// below the allocation's directory. None of the allocation's tasks may be running. Afterwards any program can remove the
// directory. It does nothing if the directory does not exist.
func (d *Dir) DropAllSecretsAndUnmount() error {
	errs := []error{UnmountAllocDirs(d.allocsRoot, func(allocID string) bool { return allocID != d.allocID })}
	entries, err := os.ReadDir(d.Path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		if e.IsDir() && checkTaskDirName(e.Name()) == nil {
			errs = append(errs, d.DropSecretsAndUnmount(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// FindAllocsMountedElsewhere returns the allocations with directories mounted, at another path, in the mount namespace of another
// running process, for example a container's. It ignores processes if this user is not allowed to examine them.
func FindAllocsMountedElsewhere(allocIDs []string) (map[string]bool, error) {
	asked := make(map[string]bool, len(allocIDs))
	for _, id := range allocIDs {
		asked[id] = true
	}
	found := make(map[string]bool)
	own, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("find containers of tasks: %w", err)
	}
	seen := map[string]bool{own: true}
	names, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	for _, name := range names {
		namespace, linkErr := os.Readlink(name)
		if linkErr != nil || seen[namespace] {
			continue
		}
		mounts, tableErr := readMountTable(filepath.Dir(filepath.Dir(name)) + "/mountinfo")
		if tableErr != nil {
			continue // the process has exited
		}
		seen[namespace] = true
		for _, m := range mounts {
			for part := range strings.SplitSeq(m.root, "/") {
				// In a copy of the machine's mount namespace, as services have it, the directory has its own path.
				if asked[part] && !strings.Contains(m.mountPoint, part) {
					found[part] = true
				}
			}
		}
	}
	return found, err
}
