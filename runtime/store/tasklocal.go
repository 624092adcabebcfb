package store

import (
	"bytes"
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// PutTask is PutTaskLocal and PutTaskState in one: after a crash there are both
// or neither.
func (s *Store) PutTask(allocID, task string, local taskrunner.LocalState, state *api.TaskState) error {
	key := allocID + "\x00" + task
	have := s.Snapshot().Reader
	records := []struct {
		table   Table
		value   any
		payload []byte
	}{{table: taskLocals, value: newTaskLocal(local)}, {table: taskStates, value: state}}
	changed := false
	for i, r := range records {
		payload, err := encode(r.value)
		if err != nil {
			return fmt.Errorf("store %s %q: %w", r.table, readable(key), err)
		}
		records[i].payload = bytes.Clone(payload) // it stays, and the encoder's has room to grow
		old := first[localRecord](have, nil, r.table, key)
		changed = changed || old == nil || !bytes.Equal(old.payload, payload)
	}
	if !changed {
		return nil
	}
	_, err := s.Update(context.Background(), func(tx *Txn) error {
		for _, r := range records {
			tx.putLocal(r.table, allocID, key, r.payload)
		}
		return nil
	})
	return err
}
