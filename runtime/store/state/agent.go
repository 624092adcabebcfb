package state

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// PluginInfo is the cached description of a plugin that has run. It applies to every file with the same content, started with
// the same settings, whatever the file's path.
type PluginInfo struct {
	FileSHA256Hex        string    `store:"sha256"`   // checksum of the plugin's file, in hex; "" if the file could not be read
	SettingsHash         string    `store:"settings"` // hash of the plugin's start arguments and configuration
	Type                 base.Type `store:"type"`
	Name                 string    `store:"name"`       // driver or hook name
	TakesPartInAllAllocs bool      `store:"all_allocs"` // the plugin is a hook that takes part in every allocation

	// FailedToStart: the plugin has failed to start, and its type and name are unknown.
	FailedToStart bool `store:"never_started"`

	FilePath string `store:"path"` // the plugin file's path
	// FileMetadata is the metadata of the file with this hash. Its ChangeTime is zero if the file was hashed so soon after a
	// change that a later change might leave the metadata the same.
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

// PluginProcess is a running plugin process's record, for the next agent to reattach.
type PluginProcess struct {
	Protocol             string    `store:"protocol"`
	Network              string    `store:"network"`
	Addr                 string    `store:"addr"`
	PID                  int       `store:"pid"`
	StartTimeTicks       uint64    `store:"start_time"`
	BootID               string    `store:"boot_id"`
	KeeperFDKeyPrefix    string    `store:"streams"`
	CommandAndConfigHash string    `store:"identity"`
	Type                 base.Type `store:"type"` // type of the plugin's driver or hook
	Name                 string    `store:"name"` // driver or hook name
}

// CheckRecord returns an error if the record lacks the process's pid. The address is missing until the process has sent its
// handshake.
func (p *PluginProcess) CheckRecord() error {
	if p.PID == 0 {
		return errors.New("the record of a plugin process lacks its pid")
	}
	return nil
}

// DirectoryOwner is the record of the data directory for a state and its tasks. It detects a directory copy.
type DirectoryOwner struct {
	StateID       string        `store:"id"` // random, the state's; a directory copy has the same id
	BootID        string        `store:"boot"`
	Device        uint64        `store:"device"`
	Inode         uint64        `store:"inode"`
	Path          string        `store:"path"`
	KeeperProcess ProcessRecord `store:"keeper"` // the directory's keeper when its last agent started
	AgentProcess  ProcessRecord `store:"agent"`  // the directory's last agent
}

// ProcessRecord is a process id's stored form.
type ProcessRecord struct {
	PID       int    `store:"pid"`
	StartTime uint64 `store:"start_time"`
}

// PendingRemoval is a deleted allocation with files still on the disk. It has the fields for its removal hooks.
type PendingRemoval api.Allocation

// CheckRecord returns an error if the record lacks its allocation or its job.
func (r *PendingRemoval) CheckRecord() error {
	if r.ID == "" || r.Job == nil {
		return errors.New("the record of an allocation that is being removed lacks its id or its job")
	}
	return nil
}

// HookKeySize is a HookTokenSigningKey's size in bytes.
const HookKeySize = 32

// HookTokenSigningKey signs the capability tokens of hooks.
type HookTokenSigningKey []byte

// CheckRecord returns an error if the key has the wrong size.
func (k HookTokenSigningKey) CheckRecord() error {
	if len(k) != HookKeySize {
		return fmt.Errorf("the key has %d bytes, want %d", len(k), HookKeySize)
	}
	return nil
}
