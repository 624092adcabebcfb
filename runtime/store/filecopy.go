package store

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
)

// WriteCopy writes the state after its last change into an empty file, and returns the index of the change and the keys in the
// state, nil if it has none. The caller remains the file's owner.
//
// The copy has all changes made by an Update that returned before the call, and no partial change. It is written from memory,
// so it is undamaged even if the state file is not. Updates wait until WriteCopy has returned.
func (s *Store) WriteCopy(ctx context.Context, file *os.File) (index uint64, keys *keyring.Ring, err error) {
	err = s.runBetweenTransactions(ctx, func() error {
		index, keys = s.lastIndex, s.sealer.keyring.Load()
		if err := writeNewStateFile(file, s.allRecords(s.memDB.Txn(false))); err != nil {
			return fmt.Errorf("copy the state to %s: %w", file.Name(), err)
		}
		return nil
	})
	return index, keys, err
}

// writeNewStateFile writes records into an empty file.
func writeNewStateFile(file *os.File, records func(yield func(bucketWrite) bool)) error {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0) // a duplicate, because the database closes it
	if err != nil {
		return err
	}
	handle := os.NewFile(uintptr(fd), file.Name())
	f := &stateFile{path: file.Name()}
	if err := f.openDatabase(handle); err != nil {
		handle.Close()
		return err
	}
	if err := f.writeAllRecords(records); err != nil {
		f.close()
		return err
	}
	return f.close()
}
