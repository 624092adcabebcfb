// Package hostprocess has the rules of drivers whose tasks are processes of the machine:
// raw_exec, exec, java and qemu. It finds their programs, and runs them only to read a version: package
// sdk/process starts the tasks.
package hostprocess

import (
	"fmt"
	"maps"
	"syscall"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/taskuser"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Config has the options that the `plugin` blocks of these drivers share. A driver embeds it in its
// configuration.
type Config struct {
	DeniedUIDRanges string `codec:"denied_host_uids"`
	DeniedGIDRanges string `codec:"denied_host_gids"`
	PidsLimit       int64  `codec:"pids_limit"` // maximum number of processes and threads of each task; 0 means no limit

	deniedIDs taskuser.Denied
}

// ConfigSchema returns the schema of a `plugin` block with the options of Config and the options of the
// driver itself. The zero value of Config has the meaning of a block without these options.
func ConfigSchema(driverAttributes map[string]*hclspec.Spec) *hclspec.Spec {
	attributes := map[string]*hclspec.Spec{
		"denied_host_uids": hclspec.Attr("denied_host_uids", "string", false),
		"denied_host_gids": hclspec.Attr("denied_host_gids", "string", false),
		"pids_limit":       hclspec.Attr("pids_limit", "number", false),
	}
	maps.Copy(attributes, driverAttributes)
	return hclspec.Object(attributes)
}

// ValidateAndParseIDRanges checks the configuration, and parses its ranges of ids. It must be called before the
// other methods.
func (c *Config) ValidateAndParseIDRanges() error {
	var err error
	if c.deniedIDs.UIDs, err = idrange.Parse(c.DeniedUIDRanges); err != nil {
		return fmt.Errorf("denied_host_uids: %w", err)
	}
	if c.deniedIDs.GIDs, err = idrange.Parse(c.DeniedGIDRanges); err != nil {
		return fmt.Errorf("denied_host_gids: %w", err)
	}
	if c.PidsLimit < 0 {
		return fmt.Errorf("pids_limit is %d; it cannot be negative", c.PidsLimit)
	}
	return nil
}

// CheckUserNotDenied returns an error if the operator denies the user of a task. userName is passed to
// process.Credential: empty means the user of the plugin.
func (c *Config) CheckUserNotDenied(userName string) error {
	if len(c.deniedIDs.UIDs) == 0 && len(c.deniedIDs.GIDs) == 0 {
		return nil
	}
	cred, err := process.Credential(userName)
	if err != nil {
		return err
	}
	return c.CheckCredentialNotDenied(cred)
}

// CheckCredentialNotDenied returns an error if the operator denies one of the ids of a task's user.
func (c *Config) CheckCredentialNotDenied(cred *syscall.Credential) error {
	return c.deniedIDs.CheckCredential(cred)
}

// DeniedIDsForTask returns the ids that a task with the ids of cred must not take: denied_host_uids and
// denied_host_gids, and the ids of deniedUsers. The ids of deniedUsers never include the task's
// own ids.
func (c *Config) DeniedIDsForTask(cred *syscall.Credential, deniedUsers []string) (uids, gids idrange.Set) {
	denied := c.deniedIDs
	denied.Names = deniedUsers
	return denied.DeniedIDs(cred)
}

// DecodeProcessState returns the process of a task from the driver state in the task's handle. The drivers
// store it in the field "process" of their states.
func DecodeProcessState(driverState []byte) (process.State, error) {
	var s struct {
		Process process.State `codec:"process"`
	}
	if err := hclspec.UnmarshalState(driverState, &s); err != nil {
		return process.State{}, fmt.Errorf("decode the state of a task: %w", err)
	}
	return s.Process, nil
}
