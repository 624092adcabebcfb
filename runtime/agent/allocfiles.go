package agent

import (
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskfiles"
)

// AllocFiles are the allocations' files. Its methods may be called concurrently.
type AllocFiles struct {
	root   string // parent of the allocations' directories
	opener taskfiles.AllocDirOpener
}

// AllocDir returns an allocation's directory, which may not exist. AllocDir fails only if the id is not valid.
func (f *AllocFiles) AllocDir(allocID string) (*allocdir.Dir, error) {
	return allocdir.New(f.root, allocID)
}

// OpenAllocFiles opens an allocation's directory for reading its tasks' files. The error is fs.ErrNotExist if the directory does
// not exist or was removed.
func (f *AllocFiles) OpenAllocFiles(allocID string) (*taskfiles.AllocDir, error) {
	return f.opener.OpenAllocDir(f.root, allocID)
}
