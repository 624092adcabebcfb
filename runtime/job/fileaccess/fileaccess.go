package fileaccess

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nomad-lite/nomad-lite/internal/shellquote"
)

const (
	// maxLookups limits how many names a reader looks up or lists for one text.
	maxLookups = 1_000_000
	// maxSymlinks is Linux's limit for symbolic links in one path.
	maxSymlinks = 40
)

// Source is where a job's text comes from.
type Source int

const (
	FromFile  Source = iota // a file on this machine
	FromStdin               // standard input: only the working directory is readable without a flag
	FromURL                 // a download: no file is readable
)

// Policy has the operator's inputs for the decision what a text may read.
type Policy struct {
	Source     Source
	JobFileDir string // the job file's directory; only for FromFile
	// AllowedPaths are files and directories the operator allows in addition.
	AllowedPaths []string
	// ForbiddenDirs are directories no text may read, whatever AllowedPaths has: agents' data directories.
	ForbiddenDirs []string
}

// Reader reads files for one text. It is not safe for concurrent use. The zero value is not usable.
type Reader struct {
	policy     Policy
	maxLookups int
	lookups    int
	outside    []string
	access     *access // nil until the first call, because most jobs read no file
}

// NewReader returns a reader. It reads nothing before the first call to another method.
func NewReader(p Policy) *Reader { return &Reader{policy: p, maxLookups: maxLookups} }

// RefusedError is the error for a file or directory the text may not read, whether it exists or not.
type RefusedError struct{ Path, Reason string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the job may not read %s: %s", e.Path, e.Reason)
}

// missingError is the error for a file that does not exist, with Nomad's text. It is fs.ErrNotExist.
type missingError struct{ path string }

func (e *missingError) Error() string        { return "no file exists at " + e.path }
func (e *missingError) Is(target error) bool { return target == fs.ErrNotExist }

var errTooManyLookups = errors.New("the file functions of the job look up too many names: use longer prefixes in the patterns of fileset")

// FilesReadOutside returns the paths, as the text names them, of files ReadFile has returned from outside the roots: the working
// directory, the job file's directory, and their repositories. Each occurs once.
func (r *Reader) FilesReadOutside() []string { return r.outside }

// ReadFile returns a regular file's content. A relative path is relative to the working directory. A file with more than limit
// bytes is an error, and so is any file but a regular one, which ReadFile does not open.
func (r *Reader) ReadFile(path string, limit int64) ([]byte, error) {
	var content []byte
	err := r.withTarget(path, func(a *access, t target) error {
		f, info, err := a.openFile(t, path)
		if err != nil {
			return err
		}
		defer f.Close()
		if info.size > limit {
			return fmt.Errorf("%s has %d bytes, and the limit is %d", path, info.size, limit)
		}
		if content, err = io.ReadAll(io.LimitReader(f, limit+1)); err != nil {
			return err
		}
		if int64(len(content)) > limit {
			return fmt.Errorf("%s has more than %d bytes", path, limit)
		}
		if !t.in.isBelowRoot && !slices.Contains(r.outside, path) {
			r.outside = append(r.outside, path)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &missingError{path}
	}
	return content, err
}

// Exists reports whether there is a regular file at the path. Anything else at the path is an error.
func (r *Reader) Exists(path string) (bool, error) {
	err := r.withTarget(path, func(_ *access, t target) error { return t.requireRegular(path) })
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}

// withTarget resolves a path and calls use with its target. It closes the target's descriptors afterwards.
func (r *Reader) withTarget(path string, use func(*access, target) error) error {
	a, err := r.open(path)
	if err != nil {
		return err
	}
	defer a.closeAll()
	t, err := a.resolvePath(path)
	if err == nil {
		err = use(a, t)
	}
	return r.describe(err, path)
}

// describe names the text's path in an error.
func (r *Reader) describe(err error, path string) error {
	errno, isErrno := err.(syscall.Errno) // a system call error no other call has described
	switch {
	case errors.Is(err, errRefused):
		reason := "it is not below the working directory, the job file's directory or their Git repository (where /, directories like /etc and home directories do not count), and not every account can read it"
		if r.policy.Source == FromStdin {
			reason = "a job file from standard input may read what is below the working directory (unless that is /, a directory like /etc or a home directory)"
		}
		return &RefusedError{path, reason + "; to allow it, add -allow-file " + shellquote.QuoteIfNeeded(path)}
	case errors.Is(err, errForbidden):
		return &RefusedError{path, "no job may read /proc, /sys or the data directory of an agent"}
	case isErrno && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("failed to read %s: %w", path, errno)
	}
	return err
}

// open returns the reader's access, and makes it at the first call.
func (r *Reader) open(path string) (*access, error) {
	switch {
	case r.policy.Source == FromURL:
		return nil, &RefusedError{path, "a job file from a URL may read no file: download the job file first, and look at what it reads"}
	case r.access == nil:
		a, err := newAccess(r)
		if err != nil {
			return nil, err
		}
		r.access = a
	}
	return r.access, nil
}

var (
	errRefused   = errors.New("refused")
	errForbidden = errors.New("forbidden")
)

// place is an open directory for looking up names. The chain of its parents is the way on which it was reached, without symbolic
// links.
type place struct {
	parent *place // nil for the file system's top
	path   string
	dir    dirHandle
	info   fileInfo

	isForbidden   bool     // is or is below a directory no text may read
	isAllowed     bool     // is or is below a directory in Policy.AllowedPaths
	isBelowRoot   bool     // is or is below a working directory, a job file's directory or a repository
	rootOwners    []uint32 // owners of the roots above, for isBelowRoot
	isPublic      bool     // each account can look up names in it
	isOtherOrigin bool     // is on a file system with modes that do not say who can read it
}

// waypoint is a name in a directory.
type waypoint struct {
	dir  fileID
	name string
}

// access is the state of a reader that has read a file.
type access struct {
	reader *Reader
	cwd    string
	uid    int
	tops   map[string]*place // by volume name, which is "" but on Windows
	opened []*place          // places to be closed, but for tops

	roots        map[fileID]uint32 // owner by root
	allowed      map[fileID]bool
	forbidden    map[fileID]bool
	waypoints    map[waypoint]bool // names on the way to roots and allowed paths, which may be looked up
	isPreparing  bool              // the operator's paths are resolved: each look-up is permitted, and becomes a waypoint
	sourceIsFile bool
}

func newAccess(r *Reader) (*access, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	a := &access{
		reader: r, cwd: cwd, uid: os.Geteuid(), tops: map[string]*place{}, roots: map[fileID]uint32{}, allowed: map[fileID]bool{},
		forbidden: map[fileID]bool{}, waypoints: map[waypoint]bool{}, sourceIsFile: r.policy.Source == FromFile,
	}
	for _, dir := range r.policy.ForbiddenDirs {
		if t, err := a.prepare(dir, false); err == nil && t.dir != nil {
			a.forbidden[t.dir.info.id] = true
		}
	}
	homes := homeDirs()
	a.addRoot(cwd, homes)
	if a.sourceIsFile {
		a.addRoot(r.policy.JobFileDir, homes)
	}
	for _, path := range r.policy.AllowedPaths {
		if t, err := a.prepare(path, true); err == nil {
			a.allowed[t.id()] = true
		}
	}
	a.closeAll() // the next places have the permissions from the roots and the allowed paths
	return a, nil
}

// prepare resolves an operator's path, and permits the look-ups on its way if the text may read it.
func (a *access) prepare(path string, permit bool) (target, error) {
	before := a.waypoints
	if !permit {
		a.waypoints = map[waypoint]bool{}
	}
	a.isPreparing = true
	t, err := a.resolvePath(path)
	a.isPreparing = false
	if !permit {
		a.waypoints = before
	}
	return t, err
}

// addRoot makes a directory, and the top of its Git repository, readable for the text. The roots of homeDirs are never made
// readable.
func (a *access) addRoot(path string, homes map[fileID]bool) {
	t, err := a.prepare(path, true)
	if err != nil || t.dir == nil {
		return
	}
	if !isTooLarge(t.dir, homes) {
		a.roots[t.dir.info.id] = t.dir.info.uid
	}
	if !a.sourceIsFile {
		return
	}
	for p := t.dir; p != nil; p = p.parent {
		git, err := p.dir.lstat(".git")
		if err != nil {
			continue
		}
		// Another account could have made .git in a shared directory such as /tmp.
		if isTrusted := git.uid == 0 || int(git.uid) == a.uid || git.uid == t.dir.info.uid; isTrusted && !isTooLarge(p, homes) {
			a.roots[p.info.id] = p.info.uid
		}
		return
	}
}

// isTooLarge reports whether a directory is never readable as a whole: the file system's top, a system directory, a home
// directory, and a directory that contains one.
func isTooLarge(p *place, homes map[fileID]bool) bool {
	return p.parent == nil || homes[p.info.id] || p.parent.path == "/home" || slices.Contains([]string{"/Users", "/boot", "/dev", "/etc", "/home", "/root", "/run", "/usr", "/var"}, p.path)
}

// homeDirs returns the home directories of this machine's accounts, and all directories above them.
func homeDirs() map[fileID]bool {
	found := map[fileID]bool{}
	home, _ := os.UserHomeDir()
	paths := []string{home}
	accounts, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(accounts)) {
		if fields := strings.Split(line, ":"); len(fields) > 5 {
			paths = append(paths, fields[5])
		}
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			continue
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		for {
			if id, err := idOfPath(path); err == nil {
				found[id] = true
			}
			above := filepath.Dir(path)
			if above == path {
				break
			}
			path = above
		}
	}
	return found
}

// closeAll closes all places.
func (a *access) closeAll() {
	a.closeSince(0)
	for _, p := range a.tops {
		p.dir.close()
	}
	clear(a.tops)
}

// mark and closeSince close the places opened between them.
func (a *access) mark() int { return len(a.opened) }

func (a *access) closeSince(mark int) {
	for _, p := range a.opened[mark:] {
		p.dir.close()
	}
	a.opened = a.opened[:mark]
}

// count counts looked-up names, and returns an error if there were too many.
func (a *access) count(names int) error {
	if a.isPreparing {
		return nil
	}
	if a.reader.lookups += names; a.reader.lookups > a.reader.maxLookups {
		return errTooManyLookups
	}
	return nil
}

// target is where a path leads: a directory, or a file in a directory.
type target struct {
	dir  *place // nil for a file
	in   *place // the file's directory
	name string
	info fileInfo
}

func (t target) id() fileID {
	if t.dir != nil {
		return t.dir.info.id
	}
	return t.info.id
}

// requireRegular returns an error if the target is not a regular file.
func (t target) requireRegular(path string) error {
	switch {
	case t.dir != nil:
		return fmt.Errorf("%s is not a regular file, but a directory", path)
	case !t.info.mode.IsRegular():
		return fmt.Errorf("%s is not a regular file, but %q", path, t.info.mode.String())
	}
	return nil
}

// absolute returns the absolute path for a path from the text or the operator.
func (a *access) absolute(path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(a.cwd, path)
	}
	return filepath.Clean(path)
}

// resolvePath resolves a path, including a symbolic link at its end.
func (a *access) resolvePath(path string) (target, error) {
	path = a.absolute(path)
	top, rest, err := a.topOf(path)
	if err != nil {
		return target{}, err
	}
	return a.resolve(top, rest)
}

// topOf returns the file system's top for an absolute path, and the names below it.
func (a *access) topOf(path string) (*place, []string, error) {
	volume := filepath.VolumeName(path)
	top := a.tops[volume]
	if top == nil {
		dir, info, err := openTop(volume + string(filepath.Separator))
		if err != nil {
			return nil, nil, err
		}
		top = &place{path: "/", dir: dir, info: info}
		a.inheritPermissions(top)
		a.tops[volume] = top
	}
	return top, strings.Split(filepath.ToSlash(path[len(volume):]), "/"), nil
}

// resolve follows names from a directory, and the symbolic links on the way.
func (a *access) resolve(p *place, rest []string) (target, error) {
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if p.parent != nil {
				p = p.parent
			}
			continue
		}
		if err := a.checkLookup(p, name); err != nil {
			return target{}, err
		}
		info, err := p.dir.lstat(name)
		switch {
		case err != nil:
			return target{}, err
		case info.mode&fs.ModeSymlink != 0:
			if links++; links > maxSymlinks {
				return target{}, syscall.ELOOP
			}
			to, err := p.dir.readlink(name)
			if err != nil {
				return target{}, err
			}
			if filepath.IsAbs(to) {
				var names []string
				if p, names, err = a.topOf(to); err != nil {
					return target{}, err
				}
				rest = append(names, rest...)
				continue
			}
			rest = append(strings.Split(filepath.ToSlash(to), "/"), rest...)
		case info.mode.IsDir():
			if p, err = a.enter(p, name); err != nil {
				return target{}, err
			}
		case len(rest) > 0:
			return target{}, syscall.ENOTDIR
		default:
			return target{in: p, name: name, info: info}, nil
		}
	}
	return target{dir: p}, nil
}

// checkLookup returns an error unless the text may learn whether a directory has a name.
func (a *access) checkLookup(p *place, name string) error {
	if err := a.count(1); err != nil {
		return err
	}
	at := waypoint{p.info.id, name}
	switch {
	case a.isPreparing:
		a.waypoints[at] = true
	case p.isForbidden:
		return errForbidden
	case p.isAllowed, a.isReadableAsRoot(p, p.info), p.isPublic && a.sourceIsFile, p.isBelowRoot && p.info.mode&0o001 != 0, a.waypoints[at]:
	default:
		return errRefused
	}
	return nil
}

// isReadableAsRoot reports whether a file or directory, which is in or is the place p, is readable because it is below a root.
// The kernel lets the superuser read all accounts' files there, too: files by an account that does not own the root are not
// readable.
func (a *access) isReadableAsRoot(p *place, info fileInfo) bool {
	return p.isBelowRoot && (a.uid != 0 || info.uid == 0 || slices.Contains(p.rootOwners, info.uid))
}

// enter opens a directory in p that is not a symbolic link. closeSince closes it.
func (a *access) enter(p *place, name string) (*place, error) {
	dir, info, err := p.dir.openDir(name)
	if err != nil {
		return nil, err
	}
	child := &place{parent: p, path: strings.TrimSuffix(p.path, "/") + "/" + name, dir: dir, info: info}
	a.inheritPermissions(child)
	a.opened = append(a.opened, child)
	if child.isForbidden && !a.isPreparing {
		return nil, errForbidden
	}
	return child, nil
}

// inheritPermissions derives a place's permissions from its parent's.
func (a *access) inheritPermissions(p *place) {
	isNewFileSystem := true
	isSearchable := p.info.mode&0o001 != 0
	if above := p.parent; above != nil {
		p.isForbidden, p.isAllowed, p.isBelowRoot, p.rootOwners = above.isForbidden, above.isAllowed, above.isBelowRoot, above.rootOwners
		p.isOtherOrigin = above.isOtherOrigin
		isSearchable = isSearchable && above.isPublic
		isNewFileSystem = p.info.id.device != above.info.id.device
	}
	if isNewFileSystem {
		kind := p.dir.fileSystem()
		p.isForbidden = p.isForbidden || kind == processFileSystem
		p.isOtherOrigin = kind == userFileSystem
	}
	p.isPublic = isSearchable && !p.isOtherOrigin
	p.isForbidden = p.isForbidden || a.forbidden[p.info.id] || p.path == "/proc" || p.path == "/sys" || isDataDir(p.dir)
	p.isAllowed = p.isAllowed || a.allowed[p.info.id]
	if owner, isRoot := a.roots[p.info.id]; isRoot {
		p.isBelowRoot = true
		p.rootOwners = append(slices.Clip(p.rootOwners), owner)
	}
}

// isDataDir reports whether a directory has the files of an agent's data directory.
func isDataDir(dir dirHandle) bool {
	for _, name := range []string{"state.db", "lock"} {
		if info, err := dir.lstat(name); err != nil || !info.mode.IsRegular() {
			return false
		}
	}
	return true
}

// openFile opens a regular file, and checks the permission on the opened descriptor.
func (a *access) openFile(t target, path string) (*os.File, fileInfo, error) {
	if err := t.requireRegular(path); err != nil {
		return nil, fileInfo{}, err
	}
	if err := a.checkContent(t.in, t.info, ordinaryFileSystem); err != nil {
		return nil, fileInfo{}, err
	}
	f, info, kind, err := t.in.dir.openFile(t.name)
	if err != nil {
		return nil, fileInfo{}, err
	}
	// Since the look-up, another process could have exchanged the file.
	t.info = info
	if err = t.requireRegular(path); err == nil {
		err = a.checkContent(t.in, info, kind)
	}
	if err != nil {
		f.Close()
		return nil, fileInfo{}, err
	}
	return f, info, nil
}

// checkContent returns an error unless the text may read a file's content in p. The file can be a mount from another kind of file
// system.
func (a *access) checkContent(p *place, info fileInfo, kind fileSystemKind) error {
	isPublic := (p.isPublic && a.sourceIsFile || p.isBelowRoot) && kind != userFileSystem && info.mode&0o004 != 0
	switch {
	case p.isForbidden, kind == processFileSystem:
		return errForbidden
	case p.isAllowed, a.allowed[info.id], a.isReadableAsRoot(p, info), isPublic:
		return nil
	}
	return errRefused
}
