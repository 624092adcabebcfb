package state

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

// PluginInfo is a cached fact about a plugin that has been up.
type PluginInfo struct {
	Path    string // path of the plugin's executable
	Program string // identity of the program that was up; another program makes the plugin unknown
	Every   string // name of the hook if it takes part in every allocation, else empty
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
