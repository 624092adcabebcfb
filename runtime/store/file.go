package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// LockedError: another process has locked the state file.
type LockedError struct {
	Path     string
	OwnerPID int // OwnerPID is 0 if the process was not found
}

func (e *LockedError) Error() string {
	if e.OwnerPID == 0 {
		return fmt.Sprintf("state file %s is in use by another process", e.Path)
	}
	return fmt.Sprintf("state file %s is in use by process %d", e.Path, e.OwnerPID)
}

// errFileReplaced: another process has replaced the file at the path while this process had it open.
var errFileReplaced = errors.New("the file was replaced by another one while it was in use")

// bucketWrite is one write to the file: value is stored under key in bucket. A nil value deletes the record.
type bucketWrite struct {
	bucket, key string
	value       []byte
}

// recordSize returns the byte count for bucket name, key and value.
func (w *bucketWrite) recordSize() int64 { return int64(len(w.bucket) + len(w.key) + len(w.value)) }

// stateFile is the state file on the disk. After Open, only the writer goroutine uses it.
type stateFile struct {
	path              string
	db                *bolt.DB // db is nil if the file must be rebuilt
	openFile          *os.File // openFile is db's open file; it holds the file lock
	mappedBytes       int64    // lower bound for the bytes that db has mapped into memory
	reservesSpace     bool     // Config.ReserveDiskSpace
	reservedEndOffset int64    // disk space is allocated for the file up to this offset

	migratesFromFormat int // the file's earlier format, to be migrated; 0 for the current format
}

// openAndLockStateFile opens a state file and locks it: exclusively if forWriting is set, otherwise shared. For an
// exclusive lock, it waits up to [filelock.KilledOwnerTimeout], or until ctx ends, for a lock that is not free. It returns a
// LockedError if another process keeps the lock.
func openAndLockStateFile(ctx context.Context, path string, forWriting bool) (*os.File, error) {
	flags, lock, timeout := os.O_RDONLY, unix.LOCK_SH, time.Duration(0)
	if forWriting {
		flags, lock, timeout = os.O_RDWR, unix.LOCK_EX, filelock.KilledOwnerTimeout
	}
	for {
		// Without O_NONBLOCK the open call would block if the file is a FIFO.
		f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("open state file: %w", err)
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("open state file %s: not a regular file", path)
		}
		if err == nil {
			if err = filelock.LockWithin(ctx, f, lock, timeout); errors.Is(err, filelock.ErrLocked) {
				err = &LockedError{Path: path, OwnerPID: findLockOwnerPID(info)}
			} else if err != nil {
				err = fmt.Errorf("lock state file %s: %w", path, err)
			}
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		// The previous lock holder may have replaced the file at the path.
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, info) {
			return f, nil
		}
		f.Close()
	}
}

// findLockOwnerPID returns the pid of a process that has locked a file, or 0. It searches the open files of all processes: the
// inode numbers in /proc/locks are wrong on an overlay filesystem.
func findLockOwnerPID(info fs.FileInfo) int {
	names, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0
	}
	for _, name := range names {
		if open, err := os.Stat(name); err != nil || !os.SameFile(open, info) {
			continue
		}
		dir, fd := filepath.Split(name)
		process := filepath.Dir(filepath.Clean(dir))
		text, err := os.ReadFile(filepath.Join(process, "fdinfo", fd))
		if err != nil || !strings.Contains(string(text), "FLOCK") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(process)); err == nil {
			return pid
		}
	}
	return 0
}

// openDatabase opens the bbolt database for writing, in a locked file with verified pages.
func (f *stateFile) openDatabase(handle *os.File) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	db, err := bolt.Open(f.path, 0o600, &bolt.Options{
		Timeout:        time.Second, // bbolt's timeout for the file lock, which this process already holds
		PageSize:       pageSize,
		NoFreelistSync: true, // the free page list is not stored: Open reads all pages anyway, and the list could be damaged
		FreelistType:   bolt.FreelistMapType,
		OpenFile:       func(string, int, os.FileMode) (*os.File, error) { return handle, nil },
	})
	if err != nil {
		return err
	}
	f.db, f.openFile, f.mappedBytes = db, handle, 0
	return nil
}

// releaseMappedPages removes the file's mapped pages from the memory of this process. The kernel maps them again on access.
func (f *stateFile) releaseMappedPages() {
	if f.db == nil || f.mappedBytes == 0 {
		return
	}
	// An error is ignored: the pages then stay in memory.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, f.db.Info().Data, uintptr(f.mappedBytes), unix.MADV_DONTNEED)
}

// writeRecords makes the writes on the disk in one bbolt transaction. allRecords yields every record of the state after
// them: if the database is not open or the file was removed, writeRecords writes a new file with these records instead.
// After an error, the state on the disk is unchanged.
func (f *stateFile) writeRecords(writes []bucketWrite, allRecords func(yield func(bucketWrite) bool)) error {
	if err := f.writeOrRebuildFile(writes, allRecords); err != nil {
		return fmt.Errorf("write state file %s: %w", f.path, err)
	}
	return nil
}

func (f *stateFile) writeOrRebuildFile(writes []bucketWrite, allRecords func(yield func(bucketWrite) bool)) error {
	atPath, err := f.isOpenFileAtPath()
	if err != nil {
		return err
	}
	if f.db == nil || !atPath {
		return f.rebuildFile(allRecords)
	}
	if err := f.applyWrites(writes); err != nil {
		return err
	}
	if atPath, err = f.isOpenFileAtPath(); err != nil {
		return err
	}
	if !atPath {
		return f.rebuildFile(allRecords) // the file was removed during the write, and the writes with it
	}
	return nil
}

// isOpenFileAtPath reports whether the path still refers to the open file.
func (f *stateFile) isOpenFileAtPath() (bool, error) {
	info, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if f.openFile == nil {
		return true, nil
	}
	mine, err := f.openFile.Stat()
	if err != nil {
		return false, err
	}
	if !os.SameFile(info, mine) {
		return false, errFileReplaced
	}
	return true, nil
}

// applyWrites makes the writes in one bbolt transaction. After an error that leaves the file content uncertain, it sets f.db to
// nil, so that the next write rebuilds the file.
func (f *stateFile) applyWrites(writes []bucketWrite) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // an I/O error on a mapped page causes a panic, which is recovered below
	defer func() {
		if p := recover(); p != nil {
			f.db = nil // the database is not closed: the panic may have left one of its locks held
			err = fmt.Errorf("%v", p)
		}
	}()
	tx, err := f.db.Begin(true)
	if err != nil {
		return err
	}
	id := uint64(tx.ID())
	f.mappedBytes = tx.Size() // the transaction's added pages are not mapped yet
	f.reserveDiskSpace(tx.Size())
	for _, o := range writes {
		if err := applyWrite(tx, o); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	// bbolt waits for the disk after the pages, and again after the meta page that refers to them.
	opcount.Count(opcount.Sync)
	opcount.Count(opcount.Sync)
	if err := tx.Commit(); err != nil {
		f.mappedBytes = 0 // the file may no longer be mapped into memory
		// If the failed transaction's meta page was written, the next transaction would be based on it.
		if h, headErr := readMetaPage(f.openFile); headErr != nil || h.txid >= id {
			f.db = nil
		}
		return err
	}
	return nil
}

func applyWrite(tx *bolt.Tx, o bucketWrite) error {
	b, err := tx.CreateBucketIfNotExists([]byte(o.bucket))
	if err != nil {
		return fmt.Errorf("table %s: %w", o.bucket, err)
	}
	if o.value == nil {
		return b.Delete([]byte(o.key))
	}
	if err := b.Put([]byte(o.key), o.value); err != nil {
		return fmt.Errorf("%s %q: %w", o.bucket, readableKey(o.key), err)
	}
	return nil
}

// temporaryNameInfix is between the state file's name and the random end in a temporary file's name. A crash can leave
// temporary files.
const temporaryNameInfix = ".new-"

// minCompactableSize is the size in bytes up to which a state file is not compacted.
const minCompactableSize = 1 << 20

// isWorthCompacting reports whether less than a quarter of the file is in use, if it has at least minCompactableSize. bbolt
// reuses free pages, and never makes the file smaller. A file that was just rebuilt is at least a quarter in use, because bbolt
// doubles a growing file's size, and fills at least half of each page.
func (f *stateFile) isWorthCompacting() bool {
	if f.db == nil {
		return false
	}
	info, err := f.openFile.Stat()
	if err != nil || info.Size() <= minCompactableSize {
		return false
	}
	meta, err := readMetaPage(f.openFile)
	if err != nil {
		return false
	}
	stats := f.db.Stats()
	used := int64(meta.pageCount) - int64(stats.FreePageN+stats.PendingPageN)
	return used*pageSize < info.Size()/4
}

// removeTemporaryFiles removes temporary files left by a crash. The file must be locked.
func (f *stateFile) removeTemporaryFiles() error {
	names, err := filepath.Glob(escapeGlob(f.path) + temporaryNameInfix + "*")
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// rebuildFile writes all records into a new file, which then replaces the file at the path. If the old file has an earlier
// format, it is kept under formatCopyName's name.
func (f *stateFile) rebuildFile(allRecords func(yield func(bucketWrite) bool)) error {
	if f.migratesFromFormat != 0 {
		return f.migrateToNewFile(allRecords)
	}
	return f.replaceWithNewFile(allRecords)
}

func (f *stateFile) replaceWithNewFile(allRecords func(yield func(bucketWrite) bool)) (err error) {
	handle, err := os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)+temporaryNameInfix+"*")
	if err != nil {
		return err
	}
	temporary := handle.Name()
	rebuilt := &stateFile{path: f.path, reservesSpace: f.reservesSpace}
	defer func() {
		if err != nil {
			os.Remove(temporary)
			if rebuilt.db == nil || rebuilt.db.Close() != nil {
				handle.Close()
			}
		}
	}()
	if err := rebuilt.openDatabase(handle); err != nil {
		return err
	}
	if err := rebuilt.writeAllRecords(allRecords); err != nil {
		return err
	}
	if err := f.renameToPath(temporary); err != nil {
		return err
	}
	old, oldHandle := f.db, f.openFile
	f.db, f.openFile, f.mappedBytes, f.reservedEndOffset = rebuilt.db, handle, 0, rebuilt.reservedEndOffset
	if old != nil {
		old.Close() // an error is ignored: the new file has all records
	} else if oldHandle != nil {
		oldHandle.Close()
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		f.db.Close() // after a power failure the path may refer to the old file
		f.db, f.openFile = nil, nil
		return err
	}
	return nil
}

// renameToPath renames the temporary file to the path. It fails if the path refers to a file other than f's open one.
func (f *stateFile) renameToPath(temporaryPath string) error {
	atPath, err := f.isOpenFileAtPath()
	if err != nil {
		return err
	}
	if atPath && f.openFile != nil {
		err = os.Rename(temporaryPath, f.path)
	} else if err = os.Link(temporaryPath, f.path); err == nil {
		err = os.Remove(temporaryPath)
	}
	return err
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	opcount.Count(opcount.Sync)
	return errors.Join(dir.Sync(), dir.Close())
}

// maxRebuildBytes limits the total record size in each writeAllRecords transaction, unless one record is larger.
const maxRebuildBytes = 4 << 20

// noSpaceError: the file system has too little free space for all records.
type noSpaceError struct {
	missingBytes int64 // lower bound for the missing free space
	cause        error
}

func (e *noSpaceError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *noSpaceError) Unwrap() error { return e.cause }

// writeAllRecords writes all records to an empty file, in several transactions, each at most maxRebuildBytes. The error is a
// noSpaceError if the disk becomes full.
func (f *stateFile) writeAllRecords(allRecords func(yield func(bucketWrite) bool)) error {
	var noRoom *noSpaceError
	for ops := range splitWritesBySize(allRecords, maxRebuildBytes) {
		if noRoom == nil {
			free, freeErr := freeBytes(filepath.Dir(f.path))
			err := f.applyWrites(ops)
			if err == nil {
				continue
			}
			if freeErr != nil || !errors.Is(err, unix.ENOSPC) {
				return err
			}
			noRoom = &noSpaceError{missingBytes: -int64(free), cause: err}
		}
		for _, o := range ops {
			noRoom.missingBytes += o.recordSize()
		}
	}
	if noRoom == nil {
		return nil
	}
	noRoom.missingBytes = max(noRoom.missingBytes, int64(os.Getpagesize()))
	return noRoom
}

// splitWritesBySize yields the writes in groups up to maxBytes; a larger write is its own group. A yielded group must not be
// used after the next one is yielded.
func splitWritesBySize(writes iter.Seq[bucketWrite], maxBytes int) iter.Seq[[]bucketWrite] {
	return func(yield func([]bucketWrite) bool) {
		var ops []bucketWrite
		var size int64
		for o := range writes {
			n := o.recordSize()
			if size+n > int64(maxBytes) && len(ops) > 0 {
				if !yield(ops) {
					return
				}
				ops, size = ops[:0], 0
			}
			ops, size = append(ops, o), size+n
		}
		yield(ops)
	}
}

// linkDamagedFileAndRemoveOldest links a damaged state file to a second name, which it returns. The file stays under
// this name after a new file has replaced it. All but the last three damaged files are removed.
func linkDamagedFileAndRemoveOldest(path string, now time.Time) (keptPath string, err error) {
	const maxKeptFiles = 3
	keptPath = path + damagedInfix + now.UTC().Format(damagedTimeFormat)
	if err := os.Link(path, keptPath); err != nil {
		return "", err
	}
	old := listKeptDamagedFiles(path)
	for _, extra := range old[:max(0, len(old)-maxKeptFiles)] {
		if err := os.Remove(extra); err != nil {
			return keptPath, err
		}
	}
	return keptPath, nil
}

// damagedInfix is between the state file's name and the time in the names of damaged files.
const damagedInfix = ".damaged-"

// damagedTimeFormat is the time format in the names of damaged files. It has nanoseconds, because two files must not get the
// same name.
const damagedTimeFormat = "20060102T150405.000000000"

// listKeptDamagedFiles returns the damaged files kept by linkDamagedFileAndRemoveOldest, oldest first.
func listKeptDamagedFiles(path string) []string {
	names, err := filepath.Glob(escapeGlob(path) + damagedInfix + "*") // sorted
	if err != nil {
		return nil // Glob fails only if its pattern is invalid
	}
	return names
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(s)
}

func (f *stateFile) close() error {
	if f.db != nil {
		return f.db.Close()
	}
	if f.openFile != nil {
		return f.openFile.Close()
	}
	return nil
}

// visitReadableRecords calls visit for every readable record in a locked state file, or in one bucket of it, and returns the
// parts that cannot be read. An empty onlyBucket means all buckets.
func visitReadableRecords(f *os.File, onlyBucket string, visit func(bucket string, key, value []byte)) ([]unreadablePart, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("read state file: %w", err)
	}
	return visitRecordsAndVerifyPages(f, size, onlyBucket, visit), nil
}
