package store

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// WriteCopy writes the state as it is after its last change into a new state file, and the keys of the state into a new
// key file, and returns the index of the change. It writes no key file if keyFile is empty or the state has no keys.
//
// The copy has all changes whose Update has returned before the call, and a part of none. It is written from memory, so that it is
// undamaged even if the state file is not. Updates wait until WriteCopy has returned. After an error, both files can exist.
func (s *Store) WriteCopy(ctx context.Context, stateFilePath, keyFile string) (index uint64, err error) {
	err = s.runBetweenTransactions(ctx, func() error {
		index = s.lastIndex
		if err := writeNewStateFile(stateFilePath, s.allRecords(s.memDB.Txn(false))); err != nil {
			return fmt.Errorf("copy the state to %s: %w", stateFilePath, err)
		}
		ring := s.sealer.keyring.Load()
		if ring == nil || keyFile == "" {
			return nil
		}
		if err := ring.Save(keyFile); err != nil {
			return fmt.Errorf("copy the keys to %s: %w", keyFile, err)
		}
		return nil
	})
	return index, err
}

// writeNewStateFile writes records into a new state file.
func writeNewStateFile(path string, records func(yield func(bucketWrite) bool)) error {
	handle, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	f := &stateFile{path: path}
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
