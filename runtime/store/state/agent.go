package state

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// PluginInfo is the cached description of a plugin that has run. It applies to every file with the
// same content that is started with the same settings, whatever the path of the file is.
type PluginInfo struct {
	FileSHA256Hex        string    `store:"sha256"`   // checksum of the plugin's file, in hex; "" if the file could not be read
	SettingsHash         string    `store:"settings"` // hash of the arguments and the configuration with which the plugin is started
	Type                 base.Type `store:"type"`
	Name                 string    `store:"name"`       // name of the driver or hook
	TakesPartInAllAllocs bool      `store:"all_allocs"` // the plugin is a hook that takes part in every allocation

	// FailedToStart means that the plugin has failed to start, and that its type and name are unknown.
	FailedToStart bool `store:"never_started"`

	FilePath string `store:"path"` // path of the plugin's file
	// FileMetadata is the metadata of the file with this hash. Its ChangeTime is zero if the file
	// was hashed so soon after a change that a later change might leave the metadata the same.
	FileMetadata FileRecord `store:"file"`
}

// FileRecord is the metadata by which a plugin file is recognized without reading it. Times are in nanoseconds since 1970.
type FileRecord struct {
	Device     uint64 `store:"device"`
	Inode      uint64 `store:"inode"`
	Size       int64  `store:"size"`
	ModTime    int64  `store:"mod_time"`
	ChangeTime int64  `store:"change_time"`
}

// PluginProcess is the record of a running plugin process, to which the next agent reattaches.
type PluginProcess struct {
	Protocol             string    `store:"protocol"`
	Network              string    `store:"network"`
	Addr                 string    `store:"addr"`
	PID                  int       `store:"pid"`
	StartTimeTicks       uint64    `store:"start_time"`
	BootID               string    `store:"boot_id"`
	KeeperFDKeyPrefix    string    `store:"streams"`
	CommandAndConfigHash string    `store:"identity"`
	Type                 base.Type `store:"type"` // type of the driver or hook that the plugin serves
	Name                 string    `store:"name"` // name of the driver or hook
}

// CheckRecord returns an error if the record lacks the pid of the process. The address is missing until the process has sent its handshake.
func (p *PluginProcess) CheckRecord() error {
	if p.PID == 0 {
		return errors.New("the record of a plugin process lacks its pid")
	}
	return nil
}

// DirectoryOwner is the record of the data directory to which a state and its tasks belong. It detects a copy of the
// directory.
type DirectoryOwner struct {
	StateID       string        `store:"id"` // random, of the state; a copy of the directory has the same id
	BootID        string        `store:"boot"`
	Device        uint64        `store:"device"`
	Inode         uint64        `store:"inode"`
	Path          string        `store:"path"`
	KeeperProcess ProcessRecord `store:"keeper"` // keeper of the directory when its last agent started
	AgentProcess  ProcessRecord `store:"agent"`  // last agent of the directory
}

// ProcessRecord is the stored form of the id of a process.
type ProcessRecord struct {
	PID       int    `store:"pid"`
	StartTime uint64 `store:"start_time"`
}

// PendingRemoval is a deleted allocation whose files are still on the disk. It has the fields that the
// hooks of its removal need.
type PendingRemoval api.Allocation

// CheckRecord returns an error if the record lacks its allocation or its job.
func (r *PendingRemoval) CheckRecord() error {
	if r.ID == "" || r.Job == nil {
		return errors.New("the record of an allocation that is being removed lacks its id or its job")
	}
	return nil
}

// HookKeySize is the size of a HookTokenSigningKey in bytes.
const HookKeySize = 32

// HookTokenSigningKey signs the capability tokens of hooks.
type HookTokenSigningKey []byte

// CheckRecord returns an error if the size of the key is wrong.
func (k HookTokenSigningKey) CheckRecord() error {
	if len(k) != HookKeySize {
		return fmt.Errorf("the key has %d bytes, want %d", len(k), HookKeySize)
	}
	return nil
}
