package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// lookPath finds the program of a task. The plugin's own PATH and working
// directory do not count.
func lookPath(start *sdk.StartRequest, name string) (string, error) {
	if name == "" {
		return "", errors.New("no command given")
	}
	if filepath.IsAbs(name) {
		if err := checkExecutable(name); err != nil {
			return "", fmt.Errorf("command %s: %w", name, err)
		}
		return name, nil
	}
	dir := start.TaskDir()
	for _, rel := range []string{filepath.Join("local", name), filepath.Clean(name)} {
		path := filepath.Join(dir, rel)
		err := checkExecutable(path)
		if errors.Is(err, os.ErrPermission) {
			// Downloaded files in the task's directory often lack the executable
			// bit.
			err = markExecutable(dir, rel)
		}
		switch {
		case err == nil:
			return path, nil
		case !errors.Is(err, os.ErrNotExist):
			return "", fmt.Errorf("command %s: %w", path, err)
		}
	}
	if strings.Contains(name, "/") {
		return "", notFoundError(fmt.Sprintf("command %q: neither in %s nor in %s", name, filepath.Join(dir, "local"), dir))
	}
	for _, in := range filepath.SplitList(start.Env["PATH"]) {
		if path := filepath.Join(in, name); filepath.IsAbs(path) && checkExecutable(path) == nil {
			return path, nil
		}
	}
	return "", notFoundError(fmt.Sprintf("command %q: neither in the task's PATH (%s) nor in %s", name, start.Env["PATH"], dir))
}

// notFoundError lists the places in which a command was searched.
type notFoundError string

func (e notFoundError) Error() string { return string(e) }

func (notFoundError) Is(target error) bool { return target == os.ErrNotExist }

func checkExecutable(path string) error {
	info, err := os.Stat(path)
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

// Credential resolves the user of a task: a name, uid, uid:gid, or nomad-<uid>
// for a user that the host has made up. Empty means the plugin's own user.
func Credential(name string) (*syscall.Credential, error) {
	if name == "" {
		groups, err := os.Getgroups()
		if err != nil {
			return nil, fmt.Errorf("look up the plugin's own groups: %w", err)
		}
		cred := &syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
		for _, g := range groups {
			cred.Groups = append(cred.Groups, uint32(g))
		}
		return cred, nil
	}
	cred, err := process.LookupUser(name)
	if err != nil {
		return nil, fmt.Errorf("user %q: %w", name, err)
	}
	return cred, nil
}

// credentialIfDifferent returns the credential that a task of the user needs, or
// nil if an unprivileged plugin already has it: setting it again would fail,
// because setgroups requires privileges.
func credentialIfDifferent(name string) (*syscall.Credential, error) {
	if name == "" {
		return nil, nil
	}
	cred, err := Credential(name)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 && int(cred.Uid) == os.Geteuid() && int(cred.Gid) == os.Getegid() {
		return nil, nil
	}
	return cred, nil
}
