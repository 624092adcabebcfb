package allocdir

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// MoveDataFrom moves alloc/data and the named tasks' local directories from previous, an allocation without running
// tasks, to this allocation, which is built and has no tasks yet. Existing files stay, so a call after a crash
// continues the move. Files that previous does not have are not an error. MoveDataFrom continues after an error.
func (d *Dir) MoveDataFrom(previous *Dir, tasks []string) error {
	if err := d.moveDataFrom(previous, tasks); err != nil {
		return fmt.Errorf("take over data of alloc %s: %w", previous.allocID, err)
	}
	return nil
}

func (d *Dir) moveDataFrom(previous *Dir, tasks []string) error {
	from, err := previous.openHandle()
	if err != nil {
		return ignoreMissing(err)
	}
	defer from.close()
	to, err := d.openHandle()
	if err != nil {
		return err
	}
	defer to.close()

	errs := []error{moveSubdirUnlessTargetHasFiles(from, to, sharedDirName, dataDirName)}
	for _, name := range tasks {
		if err := checkTaskDirName(name); err != nil {
			errs = append(errs, fmt.Errorf("task %q: %w", name, err))
			continue
		}
		errs = append(errs, moveSubdirUnlessTargetHasFiles(from, to, name, localDirName))
	}
	return errors.Join(errs...)
}

// moveSubdirUnlessTargetHasFiles moves the directory from/parent/name to to/parent/name. It creates to/parent if it
// does not exist.
func moveSubdirUnlessTargetHasFiles(from, to *dirHandle, parent, name string) error {
	source, err := from.open(parent)
	if err != nil {
		return ignoreMissing(err)
	}
	defer source.close()
	// If a task has replaced the directory by a file or a link, this is neither followed nor moved.
	dir, err := source.open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotDir):
		return nil
	case err != nil:
		return err
	}
	dir.close()
	mode, whose := fs.FileMode(0o777), taskOwned
	if isAgentRoot() && parent != sharedDirName {
		mode, whose = 0o700, agentOwned // until BuildTaskDir changes the owner to the task's user
	}
	target, err := to.ensureDir(parent, mode, whose)
	if err != nil {
		return err
	}
	defer target.close()
	err = unix.Renameat(source.fd, name, target.fd, name)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil // the target directory already has files
	}
	return source.wrapChildError("move", name, err)
}
