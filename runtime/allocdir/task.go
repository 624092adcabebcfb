package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// TaskOptions say how the directory of a task is made.
type TaskOptions struct {
	SecretsMB int                // size of secrets/; 0 means 1
	Isolation driver.FSIsolation // of the task's driver
}

// TaskDir is the directory of one task.
type TaskDir struct {
	hook.TaskDir

	// SecretsOnDisk says why secrets/ and private/ are plain directories. It
	// is nil when they are in memory.
	SecretsOnDisk error
}

// errUnprivileged is the ordinary reason for secrets on disk.
var errUnprivileged = errors.New("only root can mount a memory file system")

// BuildTask makes the directory of a task, as far as it is missing, in an
// allocation that is built. It is called before every start of the task: after
// a reboot the directory is there, but what was in memory is not. It leaves
// alone what the task has made of its own directories.
func (d *Dir) BuildTask(name string, o TaskOptions) (*TaskDir, error) {
	if err := checkTaskName(name); err != nil {
		return nil, fmt.Errorf("build directory of task %q: %w", name, err)
	}
	t := &TaskDir{TaskDir: d.Task(name)}
	if err := d.buildTask(t, name, o); err != nil {
		return nil, fmt.Errorf("build directory of task %q: %w", name, err)
	}
	return t, nil
}

func (d *Dir) buildTask(t *TaskDir, name string, o TaskOptions) error {
	alloc, err := d.open()
	if err != nil {
		return err
	}
	defer alloc.close()
	task, err := alloc.ensure(name, 0o777, nobodys)
	if err != nil {
		return err
	}
	defer task.close()

	if err := task.provide(localName, 0o777); err != nil {
		return err
	}
	if err := task.provide(tmpName, 0o777|fs.ModeSticky); err != nil {
		return err
	}
	for _, m := range []struct {
		name   string
		sizeMB int
	}{{secretsName, max(o.SecretsMB, 1)}, {privateName, 1}} {
		onDisk, err := task.ensureSecret(m.name, m.sizeMB)
		if err != nil {
			return err
		}
		if onDisk != nil {
			t.SecretsOnDisk = onDisk
		}
	}
	return nil
}

// ensureSecret makes one directory in memory. If that is not possible here it
// makes a plain one, and says why.
func (h *handle) ensureSecret(name string, sizeMB int) (onDisk, err error) {
	dir, err := h.ensure(name, 0o777, nobodys)
	if errors.Is(err, errNotDir) {
		// The task has put something else there. It cannot stay: secrets would
		// be written through it.
		if err := h.remove(name); err != nil {
			return nil, err
		}
		dir, err = h.ensure(name, 0o777, nobodys)
	}
	if err != nil {
		return nil, err
	}
	defer dir.close()
	if !privileged() {
		return errUnprivileged, nil
	}
	return h.mountSecret(name, sizeMB)
}

// DropSecrets takes the secrets of a task away: it unmounts them, or empties
// the directories if they are on disk. The runner calls it when the task will
// not start again. It may be called again, and for a task that was never built.
func (d *Dir) DropSecrets(name string) error {
	if err := checkTaskName(name); err != nil {
		return fmt.Errorf("drop secrets of task %q: %w", name, err)
	}
	if err := d.dropSecrets(name); err != nil {
		return fmt.Errorf("drop secrets of task %q: %w", name, err)
	}
	return nil
}

func (d *Dir) dropSecrets(name string) error {
	alloc, err := d.open()
	if err != nil {
		return ignoreMissing(err)
	}
	defer alloc.close()
	task, err := alloc.open(name)
	if err != nil {
		return ignoreMissing(err)
	}
	defer task.close()
	var errs []error
	for _, name := range []string{secretsName, privateName} {
		errs = append(errs, task.unmount(name), task.removeAll(name, keepTop))
	}
	return errors.Join(errs...)
}

// WriteLocal writes one file for the task, as 0755, to a path that is relative
// to its local directory. The path may lead anywhere in the directory of the
// allocation, not out of it. What is there under the last name is replaced.
func (d *Dir) WriteLocal(task, name string, data []byte) error {
	if err := d.writeLocal(task, name, data); err != nil {
		return fmt.Errorf("write %q for task %q: %w", name, task, err)
	}
	return nil
}

func (d *Dir) writeLocal(task, name string, data []byte) error {
	if err := checkTaskName(task); err != nil {
		return err
	}
	root, err := d.Open()
	if err != nil {
		return err
	}
	defer root.Close()

	file := path.Join(task, localName, name)
	if !filepath.IsLocal(file) {
		return errors.New("path escapes the alloc directory")
	}
	// Modes are set once more after the making, whatever the umask says.
	parent := ""
	for _, part := range strings.Split(path.Dir(file), "/") {
		parent = path.Join(parent, part)
		switch err := root.Mkdir(parent, 0o755); {
		case err == nil:
			if err := root.Chmod(parent, 0o755); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	if err := root.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Exclusive: neither a link nor a FIFO that a task puts there is opened.
	f, err := root.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(0o755), f.Close())
}

// checkTaskName refuses names that would not be a directory of their own.
func checkTaskName(name string) error {
	if name == sharedName {
		return errors.New(`the name "alloc" is reserved for the shared directory`)
	}
	return checkName(name)
}
