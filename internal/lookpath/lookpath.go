package lookpath

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// Find finds the program of a task whose directory is dir and whose variable PATH is
// searchPath: an absolute path, a path below the directory "local" of dir or below dir, or a
// name in a directory of searchPath. The PATH and the working directory of this process do
// not count. A file in dir without the executable bit becomes executable. An error is
// os.ErrNotExist if there is no such file.
func Find(dir, searchPath, name string) (string, error) {
	if name == "" {
		return "", errors.New("no command given")
	}
	if path.IsAbs(name) {
		if err := checkExecutable(name); err != nil {
			return "", fmt.Errorf("command %s: %w", name, err)
		}
		return name, nil
	}
	for _, rel := range []string{path.Join("local", name), path.Clean(name)} {
		file := path.Join(dir, rel)
		err := checkExecutable(file)
		if errors.Is(err, os.ErrPermission) {
			// Downloaded files in the task's directory often lack the executable
			// bit.
			err = markExecutable(dir, rel)
		}
		switch {
		case err == nil:
			return file, nil
		case !errors.Is(err, os.ErrNotExist):
			return "", fmt.Errorf("command %s: %w", file, err)
		}
	}
	if strings.Contains(name, "/") {
		return "", notFoundError(fmt.Sprintf("command %q: neither in %s nor in %s", name, path.Join(dir, "local"), dir))
	}
	for _, in := range strings.Split(searchPath, ":") {
		if file := path.Join(in, name); path.IsAbs(file) && checkExecutable(file) == nil {
			return file, nil
		}
	}
	return "", notFoundError(fmt.Sprintf("command %q: neither in the task's PATH (%s) nor in %s", name, searchPath, dir))
}

// notFoundError is the message of an error that is os.ErrNotExist. It lists where the command was searched.
type notFoundError string

func (e notFoundError) Error() string { return string(e) }

func (notFoundError) Is(target error) bool { return target == os.ErrNotExist }

func checkExecutable(file string) error {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("is a directory")
	case info.Mode()&0o111 == 0:
		return os.ErrPermission
	}
	return nil
}

// markExecutable makes a file of the task's directory executable. The task may
// write to that directory, so a link out of it is not followed.
func markExecutable(dir, rel string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return root.Chmod(rel, 0o755)
}
