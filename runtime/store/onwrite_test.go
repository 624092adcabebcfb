package store

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func TestOnWriteGetsEachWrite(t *testing.T) {
	var written []int
	s, err := Open(t.Context(), Config{StateFilePath: tempStatePath(t), Logger: hclog.NewNullLogger(), OnWrite: func(d time.Duration, records int, err error) {
		if d <= 0 || err != nil {
			t.Errorf("a write took %s and returned %v", d, err)
		}
		written = append(written, records)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	before := len(written)
	if _, err := s.Update(t.Context(), func(tx *Txn) error {
		tx.PutAgentRecord(state.BootIDName, "a")
		tx.PutAgentRecord(state.EndedAllocPrefix+"b", true)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := len(written) - before; n != 1 || written[before] != 2 {
		t.Errorf("writes with %v records, want one write with 2", written[before:])
	}
	if s.FileSizeBytes() <= 0 {
		t.Errorf("the state file has %d bytes", s.FileSizeBytes())
	}
}
