package allocdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// Directory names below an allocation's directory.
const (
	sharedDirName  = "alloc"
	dataDirName    = "data"
	logsDirName    = "logs"
	tmpDirName     = "tmp"
	localDirName   = "local"
	secretsDirName = "secrets"
	privateDirName = "private"
)

// Dir is one allocation's directory. Under a root agent it has this layout:
//
//	<root>/<alloc id>/              0700 root     the users of the tasks pass through, by an ACL
//	  .<task>.stdout.fifo           0600 root     and .<task>.stderr.fifo: made by runtime/node/files/logs
//	  alloc/ alloc/{data,logs,tmp}/ 0777 nobody   shared by all tasks
//	  <task>/                       0700 user     of the user that runs the task
//	    local/ tmp/                 0700 user
//	    secrets/ private/           0700 user     in memory
//
// With isolation chroot, a task's directory is its root directory: it is 0755 and belongs to root. With isolation image, the
// task's directory is 0700 and belongs to root. The directories in it, which the driver binds into a container, have Nomad's
// modes: 0777 nobody, tmp 1777. Under any other agent all directories belong to the agent's user, with Nomad's modes: <alloc
// id> is 0755 and a task's directory 0777.
//
// A Dir holds no resource, and its methods may be called concurrently, except that
// Destroy must not run beside another method. There must be only one Dir for an
// allocation at a time.
type Dir struct {
	allocsRoot string
	allocID    string

	mu sync.Mutex // held while the allocation directory's ACL is read and replaced, and while WriteTaskFile creates a directory
}

// New returns an allocation's directory below allocsRoot, an absolute path. It does not access the file system.
func New(allocsRoot, allocID string) (*Dir, error) {
	if !filepath.IsAbs(allocsRoot) {
		return nil, fmt.Errorf("alloc directory %q: not an absolute path", allocsRoot)
	}
	if err := checkFileName(allocID); err != nil {
		return nil, fmt.Errorf("alloc id %q: %w", allocID, err)
	}
	return &Dir{allocsRoot: filepath.Clean(allocsRoot), allocID: allocID}, nil
}

// Path returns the path on the host.
func (d *Dir) Path() string { return filepath.Join(d.allocsRoot, d.allocID) }

// LogDir returns the path to the task output directory.
func (d *Dir) LogDir() string { return filepath.Join(d.Path(), sharedDirName, logsDirName) }

// TaskPaths returns one task's paths. It does not access the file system.
func (d *Dir) TaskPaths(name string) hook.TaskDir {
	task := filepath.Join(d.Path(), name)
	mounts := filepath.Join(d.unveilMountsRoot(), d.allocID+"-"+name)
	return hook.TaskDir{
		AllocDir:           d.Path(),
		Dir:                task,
		SharedAllocDir:     filepath.Join(d.Path(), sharedDirName),
		SharedTaskDir:      filepath.Join(task, sharedDirName),
		LocalDir:           filepath.Join(task, localDirName),
		LogDir:             d.LogDir(),
		SecretsDir:         filepath.Join(task, secretsDirName),
		PrivateDir:         filepath.Join(task, privateDirName),
		UnveiledAllocDir:   filepath.Join(mounts, sharedDirName),
		UnveiledTaskDir:    filepath.Join(mounts, localDirName),
		UnveiledSecretsDir: filepath.Join(mounts, secretsDirName),
	}
}

// unveilMountsRoot returns the directory in which drivers with unveil isolation find their tasks' directories. It is beside
// allocsRoot, and not in it, because a task must not see its directories' parents.
func (d *Dir) unveilMountsRoot() string { return d.allocsRoot + unveilMountsSuffix }

const unveilMountsSuffix = "_mounts"

// Build creates the directory and its shared part, except what exists already.
func (d *Dir) Build() error {
	failpoint.Hit(failpoint.StepAllocDir, failpoint.PhaseBefore)
	if err := d.build(); err != nil {
		return fmt.Errorf("build alloc directory %s: %w", d.Path(), err)
	}
	failpoint.Hit(failpoint.StepAllocDir, failpoint.PhaseAfter)
	return nil
}

func (d *Dir) build() error {
	if err := ensureRootDir(d.allocsRoot, 0o711); err != nil {
		return err
	}
	root, err := openTrustedDir(d.allocsRoot)
	if err != nil {
		return err
	}
	defer root.close()
	alloc, err := ensureAllocDir(root, d.allocID)
	if err != nil {
		return err
	}
	defer alloc.close()
	shared, err := alloc.ensureDir(sharedDirName, 0o777, taskOwned)
	if err != nil {
		return err
	}
	defer shared.close()
	failpoint.Hit(failpoint.StepAllocDir, failpoint.PhaseDuring)
	for _, name := range []string{dataDirName, logsDirName, tmpDirName} {
		if err := shared.ensureDirUnlessReplacedByTask(name, 0o777); err != nil {
			return err
		}
	}
	return nil
}

// ensureAllocDir opens or creates an allocation's directory. A root agent does not change an existing directory, because its
// ACL may admit the users of running tasks.
func ensureAllocDir(root *dirHandle, id string) (*dirHandle, error) {
	if !isAgentRoot() {
		return root.ensureDir(id, nomadAllocDirMode, agentOwned)
	}
	alloc, made, err := root.openOrMakeDir(id)
	if err == nil && made {
		err = alloc.setOwnerAndMode(made, 0o700, agentOwned) // the umask may have reduced mkdir's mode
	}
	if err != nil && alloc != nil {
		alloc.close()
	}
	return alloc, err
}

// Open opens the allocation's directory as an os.Root, through which no path leads out of the directory. The caller closes
// it.
func (d *Dir) Open() (*os.Root, error) {
	root, err := os.OpenRoot(d.allocsRoot)
	if err != nil {
		return nil, fmt.Errorf("open alloc directory: %w", err)
	}
	defer root.Close()
	alloc, err := root.OpenRoot(d.allocID)
	if err != nil {
		return nil, fmt.Errorf("open alloc directory: %w", err)
	}
	return alloc, nil
}

// OpenToAppend opens an agent file in the allocation's directory, in which no task can write, and creates the file with mode
// 0600 if it does not exist. It makes fewer system calls than Open. The caller closes the file.
func (d *Dir) OpenToAppend(name string) (*os.File, error) {
	if err := checkFileName(name); err != nil {
		return nil, fmt.Errorf("open %q in alloc directory: %w", name, err)
	}
	alloc, err := d.openHandle()
	if err != nil {
		return nil, fmt.Errorf("open alloc directory: %w", err)
	}
	defer alloc.close()
	fd, err := safepath.OpenAt(alloc.fd, name, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, alloc.wrapChildError("open", name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.Path(), name)), nil
}

// openHandle opens the allocation's directory, which must not be a link. The caller closes it.
func (d *Dir) openHandle() (*dirHandle, error) {
	return openDirAt(unix.AT_FDCWD, d.Path(), d.Path(), unix.O_PATH)
}

// Destroy unmounts and removes the allocation's directories, including files and mounts that tasks have made there. It
// continues after an error and may be called again; a missing directory is not an error.
func (d *Dir) Destroy() error {
	var errs []error
	entries, err := os.ReadDir(d.unveilMountsRoot())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), d.allocID+"-") {
			errs = append(errs, unmountAndRemove(d.unveilMountsRoot(), e.Name()))
		}
	}
	point := failpoint.EnterStep(failpoint.StepGarbageCollection)
	errs = append(errs, unmountAndRemove(d.allocsRoot, d.allocID))
	point.Leave()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("destroy alloc directory %s: %w", d.Path(), err)
	}
	return nil
}

// checkFileName accepts only single file names.
func checkFileName(name string) error {
	switch {
	case name == "":
		return errors.New("empty name")
	case name == "." || name == "..":
		return errors.New("not a name of its own")
	case strings.ContainsAny(name, "/\\\x00"):
		return errors.New("contains a slash, a backslash or NUL")
	case len(name) > unix.NAME_MAX:
		return fmt.Errorf("longer than %d bytes", unix.NAME_MAX)
	}
	return nil
}
