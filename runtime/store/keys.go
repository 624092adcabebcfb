package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
)

// KeyFileError: variables cannot be written, because the key file is missing or cannot be read.
type KeyFileError struct {
	File  string
	Cause error
}

func (e *KeyFileError) Error() string {
	if errors.Is(e.Cause, fs.ErrNotExist) {
		return fmt.Sprintf("variables are refused: the state is sealed, and its key file %s is missing: restore the file from a backup and restart the agent, or give up what is sealed and make a new key with 'nomad-lite operator root keyring rotate'", e.File)
	}
	return fmt.Sprintf("variables are refused: key file %s: %v: repair the file and restart the agent, or make a new one with 'nomad-lite operator root keyring rotate'", e.File, e.Cause)
}

// Unwrap returns the cause.
func (e *KeyFileError) Unwrap() error { return e.Cause }

// loadKeyFileOrMakeKeys reads the key file, or makes temporary keys. It stores an error as KeyFileErr's result.
func (s *sealer) loadKeyFileOrMakeKeys() {
	switch {
	case s.temporaryKeys:
		s.keyring.Store(keyring.NewRing())
	case s.keyFile != "":
		ring, opened, err := keyring.LoadRing(s.keyFile)
		if opened {
			s.logger.Warn("other users could read the key file, its mode is 0600 now: if one may have read it, run 'nomad-lite operator root keyring rotate -full'", "path", s.keyFile)
		}
		if err != nil {
			s.setKeyFileErr(&KeyFileError{s.keyFile, err})
			return
		}
		s.keyring.Store(ring)
	}
}

// createMissingKeyFile makes the key file if it is missing and the state has no sealed records. The file must be on
// disk before the first record is sealed.
func (s *sealer) createMissingKeyFile() {
	if err := s.keyFileError(); err == nil || !errors.Is(err, fs.ErrNotExist) || len(s.decryptErrors) > 0 {
		return
	}
	ring := keyring.NewRing()
	if err := ring.Save(s.keyFile); err != nil {
		s.setKeyFileErr(&KeyFileError{s.keyFile, err})
		return
	}
	s.setKeyFileErr(nil)
	s.keyring.Store(ring)
}

// maxLoggedSealedErrors is the maximum number of log lines for records that cannot be opened.
const maxLoggedSealedErrors = 20

// logDecryptErrors logs the sealed records that cannot be opened, and adds a node event.
func (s *Store) logDecryptErrors() {
	failed, first := s.sealer.decryptErrors, error(nil)
	if len(failed) > 0 {
		first = failed[0]
	}
	if err := s.KeyFileErr(); err != nil {
		first = err
		s.logger.Error(err.Error())
	}
	for _, err := range failed[:min(len(failed), maxLoggedSealedErrors)] {
		s.logger.Error("record cannot be opened", "error", err)
	}
	if first != nil {
		s.pendingNodeEvents = append(s.pendingNodeEvents, &api.NodeEvent{
			Message: fmt.Sprintf("State cannot be opened, %d records: %v", len(failed), first), Subsystem: "Storage",
			Details: map[string]string{"key_file": s.sealer.keyFile}, Timestamp: time.Now(),
		})
	}
}

// encryptPlainRecords rebuilds the state file if it has unencrypted secrets. It does not write only these records, because the
// file's free pages would then contain the secrets for some time.
func (s *Store) encryptPlainRecords() {
	if !s.sealer.fileHasUnencryptedSecrets || s.sealer.keyring.Load() == nil {
		return
	}
	if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
		s.logger.Error("secrets in the state file are not encrypted yet, the next start of the agent tries again", "error", err)
		return
	}
	s.logger.Info("secrets in the state file are encrypted now", "key_file", s.sealer.keyFile)
	s.warnOfUnencryptedDamagedFiles()
}

// warnOfUnencryptedDamagedFiles logs the names of damaged files kept from before the state was encrypted.
func (s *Store) warnOfUnencryptedDamagedFiles() {
	if kept := listKeptDamagedFiles(s.file.path); s.sealer.fileHasUnencryptedSecrets && s.sealer.keyring.Load() != nil && len(kept) > 0 {
		s.logger.Warn("damaged state files that were kept can hold secrets that are not encrypted: remove them when they are no longer needed", "files", kept)
	}
}

// keyringOrError returns the key ring. The error is a [KeyFileError] or ErrNoKeyFile.
func (s *sealer) keyringOrError() (*keyring.Ring, error) {
	if err := s.keyFileError(); err != nil {
		return nil, err
	}
	if ring := s.keyring.Load(); ring != nil {
		return ring, nil
	}
	return nil, ErrNoKeyFile
}

// KeyFileErr returns a [KeyFileError] if variables cannot be written, or nil.
func (s *Store) KeyFileErr() error { return s.sealer.keyFileError() }

func (s *sealer) keyFileError() error {
	s.keyFileErrMu.Lock()
	defer s.keyFileErrMu.Unlock()
	return s.keyFileErr
}

func (s *sealer) setKeyFileErr(err error) {
	s.keyFileErrMu.Lock()
	defer s.keyFileErrMu.Unlock()
	s.keyFileErr = err
}

// ErrNoKeyFile: the store was opened without a key file.
var ErrNoKeyFile = errors.New("this state has no key file")

// Keys returns the metadata of all keys, oldest first, without the secrets.
func (s *Store) Keys() ([]*api.RootKeyMeta, error) {
	ring, err := s.sealer.keyringOrError()
	if err != nil {
		return nil, err
	}
	return ring.KeyMetadata(), nil
}

// RotateKeys makes a new active key, with a new RSA key if the former active key has one. If full is set, or if the key
// file was missing or unreadable, it also seals all sealed records again, with the new key. If it returns a key and an
// error, the new key is active, but the records could not be sealed or the RSA key could not be made.
func (s *Store) RotateKeys(ctx context.Context, full bool) (*api.RootKeyMeta, error) {
	_, signing, _ := s.sealer.activeSigningKey() // an error is ignored: there is no RSA key then
	var newKey *api.RootKeyMeta
	err := s.runBetweenTransactions(ctx, func() error {
		ring := s.sealer.keyring.Load()
		lost := s.KeyFileErr()
		switch {
		case lost == nil && ring == nil:
			return ErrNoKeyFile
		case lost != nil:
			// An unreadable key file is kept, because a user may repair it.
			if err := os.Rename(s.sealer.keyFile, s.sealer.keyFile+".unreadable-"+time.Now().UTC().Format(damagedTimeFormat)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("keep the key file of before: %w", err)
			}
			ring = new(keyring.Ring)
		}
		ring = ring.WithNewKey()
		if err := s.sealer.saveAndUseKeyring(ring); err != nil {
			return err
		}
		s.sealer.setKeyFileErr(nil)
		newKey = ring.ActiveKeyMetadata()
		if !full && lost == nil {
			return nil
		}
		if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
			return fmt.Errorf("key %s is the active one, but what is there could not be sealed with it: %w", newKey.KeyID, err)
		}
		return nil
	})
	if err == nil && signing != nil {
		_, _, err = s.SigningKeys().EnsureActiveKey(ctx)
	}
	return newKey, err
}

// RemoveKey removes the key with an id from the key file. It fails if records are sealed with the key, unless force is set.
// With force, it first seals these records with the active key; records that cannot be decrypted are lost.
func (s *Store) RemoveKey(ctx context.Context, id string, force bool) error {
	return s.runBetweenTransactions(ctx, func() error {
		ring, err := s.sealer.keyringOrError()
		if err != nil {
			return err
		}
		remaining, err := ring.WithoutKey(id)
		if err != nil {
			return fmt.Errorf("remove key %s: %w", id, err)
		}
		if !force {
			uses, err := s.countRecordsSealedWithKey(id)
			if err != nil {
				return err
			}
			if uses > 0 {
				return fmt.Errorf("remove key %s: %w", id, &KeyInUseError{uses})
			}
		} else if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
			return err
		}
		return s.sealer.saveAndUseKeyring(remaining)
	})
}

// KeyInUseError: a key cannot be removed, because records are sealed with it.
type KeyInUseError struct{ SealedRecordCount int }

func (e *KeyInUseError) Error() string {
	return fmt.Sprintf("%d records are sealed with it: run 'nomad-lite operator root keyring rotate -full' before", e.SealedRecordCount)
}

// saveAndUseKeyring writes a key ring to the key file, if there is one, and then makes it the sealer's ring.
func (s *sealer) saveAndUseKeyring(ring *keyring.Ring) error {
	if s.keyFile != "" {
		if err := ring.Save(s.keyFile); err != nil {
			return fmt.Errorf("write key file %s: %w", s.keyFile, err)
		}
	}
	s.keyring.Store(ring)
	return nil
}

// countRecordsSealedWithKey counts the records sealed with a key.
func (s *Store) countRecordsSealedWithKey(id string) (int, error) {
	if s.file.openFile == nil {
		return 0, errors.New("the state file is not open")
	}
	n := 0
	faults, err := visitReadableRecords(s.file.openFile, "", func(bucket string, key, value []byte) {
		if _, r, err := decodeRecordAndFindTable(bucket, string(key), value); err == nil {
			if box, _, err := decodeEnvelope(r.payload); err == nil && keyring.SealingKeyID(box) == id {
				n++
			}
		}
	})
	if err == nil && len(faults) > 0 {
		err = fmt.Errorf("the state file is damaged: %v", faults[0])
	}
	return n, err
}

// runBetweenTransactions runs f in the writer goroutine between two transactions, and blocks until f has returned.
func (s *Store) runBetweenTransactions(ctx context.Context, f func() error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r, err := s.queue.push(&updateRequest{betweenTxnsFn: f, writeDeadline: time.Now()})
	if err != nil {
		return err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.requestState.CompareAndSwap(requestStateQueued, requestStateWithdrawn) {
			return context.Cause(ctx)
		}
		<-r.done
	}
	return r.err
}
