package replacefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// WriteInRoot replaces the content of a file in a directory that tasks may not change, and creates the file if it does not
// exist. After an error the file has its former content. Calls for one file must not be concurrent.
func WriteInRoot(dir *os.Root, name string, content []byte, mode fs.FileMode) error {
	newName := name + ".new"
	if err := dir.WriteFile(newName, content, mode); err != nil {
		return errors.Join(err, dir.Remove(newName))
	}
	return dir.Rename(newName, name)
}

const temporaryPrefix = ".nomad-lite-"

// RemoveLeftovers removes the temporary files that interrupted Write calls left in a directory. No process may call Write for a
// file in this directory at the same time.
func RemoveLeftovers(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporaryPrefix) && e.Type().IsRegular() {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Write replaces the content of a file, and creates the file if it does not exist. If path is a symbolic link, Write replaces
// its target. After an error the file has its former content.
func Write(path string, text []byte, mode fs.FileMode) error {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		target, err = path, nil
	}
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(target), temporaryPrefix+"*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(text)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), target)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", target, err), os.Remove(temporary.Name()))
	}
	return nil
}
