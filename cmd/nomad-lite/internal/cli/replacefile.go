package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ReplaceFileAtomically replaces the content of a file atomically, so that a full disk leaves the old text and not half
// of the new one. It creates the file if it does not exist. If path is a symbolic link, ReplaceFileAtomically replaces
// its target.
func ReplaceFileAtomically(path string, text []byte, mode fs.FileMode) error {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		target, err = path, nil
	}
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(target), ".nomad-lite-*")
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
