package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// formatKey is the format record's key in the metadata table.
const formatKey = "format"

// formatRecord describes a state file's format. formatRecord's encoding never changes, so each build can read it: a record with
// schema version 1 and a JSON object with these three members as payload.
type formatRecord struct {
	// Format is the format's number.
	Format int `json:"format"`
	// OldestReaderFormat is the lowest format with builds that can read the file: they ignore what later formats have added.
	OldestReaderFormat int `json:"oldest_reader"`
	// WriterVersion is the version of the build that wrote the file.
	WriterVersion string `json:"writer"`
}

// A migration converts one part of a record from one format to the next format. A record with a secret part has two parts:
// the secret part, for which isSealed is set, and the other one. The result is nil if the next format has no such record.
// It is called concurrently for different records.
type migration func(bucket, key string, isSealed bool, recordPart []byte) ([]byte, error)

// fileFormat is a build's format for writing state files.
type fileFormat struct {
	number                int
	oldestReaderFormat    int
	migrationByFromFormat map[int]migration // keyed by the format number that the migration converts
}

// currentFormat is this build's format.
//
// Format 2 has a task's handles in records of their own. A task record of format 1 has them inside, and keeps them until the task
// record is written again.
var currentFormat = fileFormat{number: 2, oldestReaderFormat: 2, migrationByFromFormat: map[int]migration{1: keepRecordPart}}

// keepRecordPart is the migration for formats that differ only in records that this build reads in both forms.
func keepRecordPart(_, _ string, _ bool, part []byte) ([]byte, error) { return part, nil }

// UnsupportedFormatError: this build cannot read a state file's format. The file was not changed.
type UnsupportedFormatError struct {
	Path                 string
	FoundFormat          int
	WriterVersion        string // version of the build that wrote the file
	CurrentFormat        int
	PreMigrationCopyPath string // file copy in the current format, from before a newer build migrated the file; empty if there is none
}

func (e *UnsupportedFormatError) Error() string {
	if e.FoundFormat < e.CurrentFormat {
		return fmt.Sprintf("state file %s has format %d of nomad-lite %s, and this version has no migration from it to its format %d; nothing was changed: start a version that reads format %d first",
			e.Path, e.FoundFormat, e.WriterVersion, e.CurrentFormat, e.FoundFormat)
	}
	wayBack := "to go back, drain the node with that version, and restore a snapshot that this version has saved (nomad-lite operator snapshot restore), or start this version with another data directory"
	if e.PreMigrationCopyPath != "" {
		wayBack = fmt.Sprintf("to go back, drain the node with that version, and replace the state file by its copy from before the upgrade, %s, or restore a snapshot that this version has saved (nomad-lite operator snapshot restore)", e.PreMigrationCopyPath)
	}
	return fmt.Sprintf("state file %s has format %d, which nomad-lite %s can read, and this version reads format %d; nothing was changed, and tasks continue to run: start nomad-lite %s again; %s",
		e.Path, e.FoundFormat, e.WriterVersion, e.CurrentFormat, e.WriterVersion, wayBack)
}

// MigrationError: a state file could not be migrated to the current format. The state can be read; each update tries the
// migration again, and fails if the migration fails.
type MigrationError struct {
	Path             string
	FoundFormat      int   // the file's format, not migrated
	MissingDiskBytes int64 // lower bound for the missing free space; 0 if the cause is another one
	Cause            error
}

func (e *MigrationError) Error() string {
	remedy := e.Cause.Error()
	if e.MissingDiskBytes > 0 {
		remedy = fmt.Sprintf("at least %d bytes are missing on its file system: free them", e.MissingDiskBytes)
	}
	return fmt.Sprintf("state file %s stays in format %d, and no change can be stored until it is migrated: %s", e.Path, e.FoundFormat, remedy)
}

// Unwrap returns the cause.
func (e *MigrationError) Unwrap() error { return e.Cause }

// errNoFormat: a file has no format record, and damage is not the reason.
var errNoFormat = errors.New("it was written by a development build before version 0.1, which no version reads; nothing was changed, and tasks continue to run: start that build again, or move the file to another place to start with an empty state")

// encodeFormatRecord returns the write for storing the file format record.
func encodeFormatRecord(r formatRecord) bucketWrite {
	payload, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("store: encode %+v: %v", r, err)) // a bug: numbers and a text can be encoded
	}
	return bucketWrite{metaBucket, formatKey, encodeRecord(metaBucket, formatKey, 0, payload)}
}

// decodeFormatRecord decodes and checks the file format record's payload.
func decodeFormatRecord(payload []byte) (*formatRecord, error) {
	r := new(formatRecord)
	if err := json.Unmarshal(payload, r); err != nil {
		return nil, err
	}
	if r.Format < 1 || r.OldestReaderFormat < 1 || r.OldestReaderFormat > r.Format {
		return nil, fmt.Errorf("format %d with oldest reader %d", r.Format, r.OldestReaderFormat)
	}
	return r, nil
}

// readFormatRecord reads the file format record from a locked state file. It returns nil if the record is damaged or can be
// lost through damage, and errNoFormat if the file never had one: its metadata table is undamaged and has other records. A
// build before version 0.1 has written such a file, and its other records are no damage, although this build cannot decode
// them.
func readFormatRecord(f *os.File) (found *formatRecord, err error) {
	haveOthers, isDamaged := false, false
	unreadable, err := visitReadableRecords(f, metaBucket, func(_ string, key, value []byte) {
		r, err := decodeRecord(metaBucket, string(key), value)
		if err == nil && string(key) == formatKey {
			found, err = decodeFormatRecord(r.payload)
		}
		haveOthers, isDamaged = true, isDamaged || err != nil
	})
	if err == nil && found == nil && haveOthers && !isDamaged && len(unreadable) == 0 {
		err = errNoFormat
	}
	return found, err
}

// checkFormatAndNoteMigration returns an UnsupportedFormatError or errNoFormat if this build cannot read a locked state file's
// format. It does not change the file. If this build can migrate the file from an earlier format, checkFormatAndNoteMigration
// sets s.file.migratesFromFormat.
func (s *Store) checkFormatAndNoteMigration(handle *os.File) error {
	found, err := readFormatRecord(handle)
	if err != nil {
		return fmt.Errorf("open state file %s: %w", s.file.path, err)
	}
	if found == nil {
		return nil // the loader reports the damage
	}
	unsupported := &UnsupportedFormatError{Path: s.file.path, FoundFormat: found.Format, WriterVersion: found.WriterVersion, CurrentFormat: s.currentFormat.number}
	if found.OldestReaderFormat > s.currentFormat.number {
		if name := formatCopyName(s.file.path, s.currentFormat.number); isRegularFile(name) {
			unsupported.PreMigrationCopyPath = name
		}
		return unsupported
	}
	for n := found.Format; n < s.currentFormat.number; n++ {
		if s.currentFormat.migrationByFromFormat[n] == nil {
			return unsupported
		}
		s.file.migratesFromFormat = found.Format
	}
	return nil
}

// formatToWrite returns the file format record that this build writes. found is the record in the file, or nil. A file with a
// newer, readable format keeps its format: this build's records are valid in the newer format.
func (s *Store) formatToWrite(found *formatRecord) formatRecord {
	r := formatRecord{Format: s.currentFormat.number, OldestReaderFormat: s.currentFormat.oldestReaderFormat, WriterVersion: s.buildVersion}
	if found != nil && found.Format > r.Format {
		r.Format, r.OldestReaderFormat = found.Format, found.OldestReaderFormat
	}
	return r
}

// migrateRecordPart converts one record part from the file's format to the current format. The result is nil if the current
// format has no such record.
func (s *Store) migrateRecordPart(bucket, key string, isSealed bool, part []byte) ([]byte, error) {
	if s.file.migratesFromFormat == 0 {
		return part, nil
	}
	for n := s.file.migratesFromFormat; n < s.currentFormat.number && part != nil; n++ {
		var err error
		if part, err = s.currentFormat.migrationByFromFormat[n](bucket, key, isSealed, part); err != nil {
			return nil, fmt.Errorf("migrate it from format %d: %w", n, err)
		}
	}
	return part, nil
}

// migrateFileOrLogError writes the migrated records, loaded from a file with an earlier format, into a new file. If that fails,
// it logs the error, and each update tries the migration again.
func (s *Store) migrateFileOrLogError() {
	from := s.file.migratesFromFormat
	err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false)))
	if err == nil {
		s.logger.Info("state file migrated", "from_format", from, "format", s.currentFormat.number, "copy", formatCopyName(s.file.path, from))
		return
	}
	s.logger.Error("state file not migrated", "error", err)
	s.pendingNodeEvents = append(s.pendingNodeEvents, &api.NodeEvent{Message: "State cannot be changed: " + err.Error(), Subsystem: "Storage", Timestamp: time.Now()})
	s.lastWriteErr.Store(&err)
}

// formatCopyName returns the name under which a state file is kept when it is migrated from a format.
func formatCopyName(path string, format int) string { return fmt.Sprintf("%s.format-%d", path, format) }

func isRegularFile(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.Mode().IsRegular()
}

// freeBytes is FreeDiskBytes, or a test's replacement.
var freeBytes = FreeDiskBytes

// migrateToNewFile replaces a file with an earlier format by a new file with all records. The old file is kept under
// formatCopyName's name. The error is a MigrationError.
func (f *stateFile) migrateToNewFile(allRecords func(yield func(bucketWrite) bool)) error {
	if missing := f.missingDiskBytesForCopy(); missing > 0 {
		return &MigrationError{Path: f.path, FoundFormat: f.migratesFromFormat, MissingDiskBytes: missing, Cause: unix.ENOSPC}
	}
	err := f.linkPreMigrationCopy(f.migratesFromFormat)
	if err == nil {
		err = f.replaceWithNewFile(allRecords)
	}
	if err != nil {
		migrationErr := &MigrationError{Path: f.path, FoundFormat: f.migratesFromFormat, Cause: err}
		// The new file is larger, or the file system needs part of its free space itself.
		var noRoom *noSpaceError
		if errors.As(err, &noRoom) {
			migrationErr.MissingDiskBytes = noRoom.missingBytes
		} else if errors.Is(err, unix.ENOSPC) {
			migrationErr.MissingDiskBytes = int64(os.Getpagesize())
		}
		return migrationErr
	}
	f.migratesFromFormat = 0
	return nil
}

// missingDiskBytesForCopy returns how many free bytes are missing for a second file of the same size. It returns 0 if none are
// missing or the number is unknown.
func (f *stateFile) missingDiskBytesForCopy() int64 {
	info, err := f.openFile.Stat()
	if err != nil {
		return 0
	}
	free, err := freeBytes(filepath.Dir(f.path))
	if err != nil {
		return 0
	}
	return max(0, info.Size()-int64(free))
}

// linkPreMigrationCopy links the state file to a second name, under which it stays when a new file replaces it.
func (f *stateFile) linkPreMigrationCopy(format int) error {
	name := formatCopyName(f.path, format)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(f.path, name); err != nil {
		return err
	}
	return syncDir(filepath.Dir(f.path))
}
