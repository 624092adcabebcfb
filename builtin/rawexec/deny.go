package rawexec

import (
	"fmt"
	"path"

	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// removeDeniedVars removes the environment variables whose names match one of the
// patterns, in which * matches any text.
func removeDeniedVars(env map[string]string, patterns []string) {
	for name := range env {
		for _, pattern := range patterns {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				delete(env, name)
			}
		}
	}
}

// checkUser returns an error if the operator denies the user of a task, also if
// it is the default user.
func (c *pluginConfig) checkUser(name string) error {
	if len(c.deniedUIDs) == 0 && len(c.deniedGIDs) == 0 {
		return nil
	}
	cred, err := process.Credential(name)
	if err != nil {
		return err
	}
	if c.deniedUIDs.Contains(cred.Uid) {
		return fmt.Errorf("running as uid %d is denied by denied_host_uids of the driver", cred.Uid)
	}
	for _, gid := range append(cred.Groups, cred.Gid) {
		if c.deniedGIDs.Contains(gid) {
			return fmt.Errorf("running with gid %d is denied by denied_host_gids of the driver", gid)
		}
	}
	return nil
}
