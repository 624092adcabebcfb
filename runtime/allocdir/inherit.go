package allocdir

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Inherit moves alloc/data and the local directories of the named tasks from the
// directory of another allocation, whose tasks have ended, to this one, which is
// built and has no tasks yet. What is there already stays: after a crash in
// between, Inherit goes on where it was. What the other one does not have is no
// error. It goes on after an error.
func (d *Dir) Inherit(previous *Dir, tasks []string) error {
	if err := d.inherit(previous, tasks); err != nil {
		return fmt.Errorf("take over data of alloc %s: %w", previous.id, err)
	}
	return nil
}

func (d *Dir) inherit(previous *Dir, tasks []string) error {
	from, err := previous.open()
	if err != nil {
		return ignoreMissing(err)
	}
	defer from.close()
	to, err := d.open()
	if err != nil {
		return err
	}
	defer to.close()

	errs := []error{move(from, to, sharedName, dataName)}
	for _, name := range tasks {
		if err := checkTaskName(name); err != nil {
			errs = append(errs, fmt.Errorf("task %q: %w", name, err))
			continue
		}
		errs = append(errs, move(from, to, name, localName))
	}
	return errors.Join(errs...)
}

// move moves the directory called name from one parent to the parent of the same
// name elsewhere, which is made if it is missing.
func move(from, to *handle, parent, name string) error {
	source, err := from.open(parent)
	if err != nil {
		return ignoreMissing(err)
	}
	defer source.close()
	// What a task has put in place of the directory is not followed, nor taken along.
	dir, err := source.open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotDir):
		return nil
	case err != nil:
		return err
	}
	dir.close()
	mode, whose := fs.FileMode(0o777), taskOwned
	if privileged() && parent != sharedName {
		mode, whose = 0o700, ours // BuildTask gives it to the user of the task
	}
	target, err := to.ensure(parent, mode, whose)
	if err != nil {
		return err
	}
	defer target.close()
	err = unix.Renameat(source.fd, name, target.fd, name)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil // it is in use already
	}
	return source.errorf("move", name, err)
}
