package state

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
)

// PluginInfo is the cached description of a plugin that has run. It is valid for every file
// with this content that is started with these settings, whatever the path of the file is.
type PluginInfo struct {
	SHA256    string // checksum of the plugin's file, in hex; "" if the file could not be read
	Settings  string // Settings of the plugin's [catalog.ProgramID]
	Type      base.Type
	Name      string // name of the driver or hook
	AllAllocs bool   // the plugin is a hook that takes part in every allocation

	// NeverStarted means that the plugin has failed to start, and that its type and name are unknown.
	NeverStarted bool

	Path string // path of the plugin's file
	// File is the metadata of the file with this SHA256. Its ChangeTime is zero if the file
	// was hashed so soon after a change that a later change might leave the metadata the same.
	File catalog.FileStat
}

// PendingRemoval is a deleted allocation that is still on the disk. It has what the calls
// of its hooks need.
type PendingRemoval api.Allocation

// CheckRecord returns an error if the record lacks its allocation or its job.
func (r *PendingRemoval) CheckRecord() error {
	if r.ID == "" || r.Job == nil {
		return errors.New("the record of an allocation that is being removed lacks its id or its job")
	}
	return nil
}

// HookKeySize is the size of a HookKey in bytes.
const HookKeySize = 32

// HookKey signs the capability tokens of hooks.
type HookKey []byte

// CheckRecord returns an error if the size of the key is wrong.
func (k HookKey) CheckRecord() error {
	if len(k) != HookKeySize {
		return fmt.Errorf("the key has %d bytes, want %d", len(k), HookKeySize)
	}
	return nil
}
