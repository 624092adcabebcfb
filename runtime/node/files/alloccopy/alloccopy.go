package alloccopy

import (
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// FileName is the copy's name in the allocation's directory.
const FileName = ".allocation"

// maxFileBytes limits the memory that Read needs. A job has at most 10 MB.
const maxFileBytes = 64 << 20

// Write replaces the copy in dir, the allocation's existing directory, unless the copy is of the same assignment (see
// AllocModifyIndex). The copy has the assignment and the job, but no task states: these are in the state and in the time line.
// After a crash, the directory has the former copy or this one. Calls for one directory must not be concurrent.
func Write(dir *allocdir.Dir, alloc *api.Allocation) error {
	root, err := dir.Open()
	if err != nil {
		return fmt.Errorf("write copy of allocation %s: %w", alloc.ID, err)
	}
	defer root.Close()
	if alloc.AllocModifyIndex != 0 {
		existing, err := readFile(root)
		if err == nil && store.AllocationCopyIndex(alloc.ID, existing) == alloc.AllocModifyIndex {
			return nil
		}
	}
	copied := *alloc
	copied.TaskStates, copied.Metrics, copied.NetworkStatus = nil, nil, nil
	content, err := store.EncodeAllocationCopy(&copied)
	if err != nil {
		return err
	}
	if err := replacefile.WriteInRoot(root, FileName, content, 0o600); err != nil {
		return fmt.Errorf("write copy of allocation %s: %w", alloc.ID, err)
	}
	return nil
}

// readFile returns the content of the copy's file, which may be damaged.
func readFile(root *os.Root) ([]byte, error) {
	file, err := root.OpenFile(FileName, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxFileBytes))
}

// Read returns the copy in the allocation's directory. The error wraps fs.ErrNotExist if there is none.
func Read(dir *allocdir.Dir, allocID string) (*api.Allocation, error) {
	root, err := dir.Open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	content, err := readFile(root)
	if err != nil {
		return nil, fmt.Errorf("read copy of allocation %s: %w", allocID, err)
	}
	return store.DecodeAllocationCopy(allocID, content)
}
