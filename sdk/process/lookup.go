package process

import (
	"fmt"
	"os"
	"syscall"

	"github.com/nomad-lite/nomad-lite/internal/lookpath"
	"github.com/nomad-lite/nomad-lite/internal/taskuser"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// lookPath finds the program of a task. The plugin's own PATH and working
// directory do not count.
func lookPath(start *sdk.StartRequest, name string) (string, error) {
	return lookpath.Find(start.TaskDir(), start.Env["PATH"], name)
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
	cred, err := taskuser.Lookup(name)
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
