package process

import (
	"fmt"
	"os"
	"syscall"

	"github.com/nomad-lite/nomad-lite/internal/lookpath"
	"github.com/nomad-lite/nomad-lite/internal/taskuser"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// findProgramOfTask returns the path of a program of the task, from the name in the job. It uses the PATH and
// the directory of the task, and not those of the plugin.
func findProgramOfTask(start *sdk.StartRequest, name string) (string, error) {
	return lookpath.Find(start.TaskDir(), start.Env["PATH"], name)
}

// Credential returns the credential of the user of a task. The name is a user name, uid, uid:gid, or nomad-<uid>
// for a dynamic user, which the host has allocated. Empty means the plugin's own user.
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
	cred, err := taskuser.Lookup(name)
	if err != nil {
		return nil, err
	}
	return cred, nil
}

// credentialIfDifferent returns the credential of a user, or nil if name is empty or an unprivileged plugin
// runs as this user: setting the credential again would fail, because setgroups requires privileges.
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
