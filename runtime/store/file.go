package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// LockedError means that another process works on the state file.
type LockedError struct {
	Path string
	PID  int // 0 if it could not be found out
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("state file %s is in use by another process", e.Path)
	}
	return fmt.Sprintf("state file %s is in use by process %d", e.Path, e.PID)
}

// errReplaced means that the path leads to a file that somebody else has put
// there while this one was open.
var errReplaced = errors.New("the file was replaced by another one while it was in use")

// op is one write. A nil value deletes.
type op struct {
	bucket, key string
	value       []byte
}

// file is the state file. Only the writer uses it.
type file struct {
	path   string
	db     *bolt.DB // nil if the file must be written anew
	handle *os.File // what db works on, and what holds the lock
	used   int64    // how much of the file db has in memory, at least
}

// openLocked opens a regular file and takes its lock, exclusively for writing.
func openLocked(path string, write bool) (*os.File, error) {
	flags, lock := os.O_RDONLY, unix.LOCK_SH
	if write {
		flags, lock = os.O_RDWR, unix.LOCK_EX
	}
	for {
		// A FIFO would block without O_NONBLOCK.
		f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("open state file: %w", err)
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("open state file %s: not a regular file", path)
		}
		if err == nil {
			if err = unix.Flock(int(f.Fd()), lock|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
				err = &LockedError{Path: path, PID: lockOwner(info)}
			} else if err != nil {
				err = fmt.Errorf("lock state file %s: %w", path, err)
			}
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		// Who held the lock may have put a new file in its place.
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, info) {
			return f, nil
		}
		f.Close()
	}
}

// lockOwner finds the process that has locked a file. It asks the open files of
// all processes: the inode numbers of /proc/locks are not those of an overlay.
func lockOwner(info fs.FileInfo) int {
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

// use makes an open, locked and sound file the one that is written to.
func (f *file) use(handle *os.File) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	db, err := bolt.Open(f.path, 0o600, &bolt.Options{
		Timeout:        time.Second, // the lock is ours already
		PageSize:       pageSize,
		NoFreelistSync: true, // all is read at the start anyway, and what is not stored cannot be damaged
		FreelistType:   bolt.FreelistMapType,
		NoStatistics:   true,
		OpenFile:       func(string, int, os.FileMode) (*os.File, error) { return handle, nil },
	})
	if err != nil {
		return err
	}
	f.db, f.handle, f.used = db, handle, 0
	return nil
}

// releasePages takes the pages of the file out of the memory of this process. They come back
// from the system's when they are needed.
func (f *file) releasePages() {
	if f.db == nil || f.used == 0 {
		return
	}
	// An error changes nothing.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, f.db.Info().Data, uintptr(f.used), unix.MADV_DONTNEED)
}

// write makes the changes durable. all yields every record of the state with
// these changes: if the file cannot be written to any more, a new one is made
// of them. After an error nothing has changed.
func (f *file) write(ops []op, all func(yield func(op) bool)) error {
	if err := f.writeOnce(ops, all); err != nil {
		return fmt.Errorf("write state file %s: %w", f.path, err)
	}
	return nil
}

func (f *file) writeOnce(ops []op, all func(yield func(op) bool)) error {
	there, err := f.inPlace()
	if err != nil {
		return err
	}
	if f.db == nil || !there {
		return f.rebuild(all)
	}
	if err := f.apply(ops); err != nil {
		return err
	}
	if there, err = f.inPlace(); err != nil {
		return err
	}
	if !there {
		return f.rebuild(all) // the changes went with the old file
	}
	return nil
}

// inPlace reports whether the path still leads to the file that is open.
func (f *file) inPlace() (bool, error) {
	info, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if f.handle == nil {
		return true, nil
	}
	mine, err := f.handle.Stat()
	if err != nil {
		return false, err
	}
	if !os.SameFile(info, mine) {
		return false, errReplaced
	}
	return true, nil
}

// apply writes one transaction. If it is not certain afterwards that the file is
// as it was or as it shall be, the file is given up.
func (f *file) apply(ops []op) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a disk that fails under the map is an error too
	defer func() {
		if p := recover(); p != nil {
			f.db = nil // not closed: it may hold its own lock
			err = fmt.Errorf("%v", p)
		}
	}()
	tx, err := f.db.Begin(true)
	if err != nil {
		return err
	}
	id := uint64(tx.ID())
	f.used = tx.Size() // what it adds is mapped later
	for _, o := range ops {
		if err := put(tx, o); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	if err := tx.Commit(); err != nil {
		f.used = 0 // the file may have lost its map
		// With its head on the way to the disk, the failed change may be what
		// the next transaction would begin with.
		if h, headErr := readHead(f.handle); headErr != nil || h.txid >= id {
			f.db = nil
		}
		return err
	}
	return nil
}

func put(tx *bolt.Tx, o op) error {
	b, err := tx.CreateBucketIfNotExists([]byte(o.bucket))
	if err != nil {
		return fmt.Errorf("table %s: %w", o.bucket, err)
	}
	if o.value == nil {
		return b.Delete([]byte(o.key))
	}
	if err := b.Put([]byte(o.key), o.value); err != nil {
		return fmt.Errorf("%s %q: %w", o.bucket, readable(o.key), err)
	}
	return nil
}

// unfinished is in the names of files that a crash may leave.
const unfinished = ".new-"

// tidy removes what a crash has left. The file must be locked.
func (f *file) tidy() error {
	names, err := filepath.Glob(escapeGlob(f.path) + unfinished + "*")
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// rebuild writes all records into a new file, and puts it in the place of the
// old one, which stays as it is until then.
func (f *file) rebuild(all func(yield func(op) bool)) (err error) {
	handle, err := os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)+unfinished+"*")
	if err != nil {
		return err
	}
	temporary := handle.Name()
	fresh := &file{path: f.path}
	defer func() {
		if err != nil {
			os.Remove(temporary)
			if fresh.db == nil || fresh.db.Close() != nil {
				handle.Close()
			}
		}
	}()
	if err := fresh.use(handle); err != nil {
		return err
	}
	if err := fresh.fill(all); err != nil {
		return err
	}
	if err := f.replace(temporary); err != nil {
		return err
	}
	old, oldHandle := f.db, f.handle
	f.db, f.handle, f.used = fresh.db, handle, 0
	if old != nil {
		old.Close() // nothing of it is needed any more
	} else if oldHandle != nil {
		oldHandle.Close()
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		f.db.Close() // after a power cut the name may lead to the old file
		f.db, f.handle = nil, nil
		return err
	}
	return nil
}

// replace gives the new file its name. It does not replace a file that this one
// does not know.
func (f *file) replace(temporary string) error {
	there, err := f.inPlace()
	if err != nil {
		return err
	}
	if there && f.handle != nil {
		err = os.Rename(temporary, f.path)
	} else if err = os.Link(temporary, f.path); err == nil {
		err = os.Remove(temporary)
	}
	return err
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// fill writes all records, in transactions of a few megabytes.
func (f *file) fill(all func(yield func(op) bool)) error {
	const enough = 4 << 20
	var ops []op
	var err error
	size := 0
	for o := range all {
		ops = append(ops, o)
		if size += len(o.value); size >= enough {
			if err = f.apply(ops); err != nil {
				return err
			}
			ops, size = ops[:0], 0
		}
	}
	return f.apply(ops)
}

// keepDamaged gives a damaged file a second name, so that a person can look at
// it when the first name leads to another one. The last few are kept.
func keepDamaged(path string, now time.Time) (string, error) {
	const kept = 3
	name := path + ".damaged-" + now.UTC().Format(keptFormat)
	if err := os.Link(path, name); err != nil {
		return "", err
	}
	old := damagedFiles(path)
	for _, extra := range old[:max(0, len(old)-kept)] {
		if err := os.Remove(extra); err != nil {
			return name, err
		}
	}
	return name, nil
}

// keptFormat is the time in the name of a file that is set aside.
const keptFormat = "20060102T150405.000"

// damagedFiles returns the files that keepDamaged has kept, oldest first.
func damagedFiles(path string) []string {
	names, err := filepath.Glob(escapeGlob(path) + ".damaged-*") // sorted
	if err != nil {
		return nil // the pattern is right
	}
	return names
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(s)
}

func (f *file) close() error {
	if f.db != nil {
		return f.db.Close()
	}
	if f.handle != nil {
		return f.handle.Close()
	}
	return nil
}

// scanFile reads all that can be read of a locked file.
func scanFile(f *os.File, visit func(bucket string, key, value []byte)) ([]fault, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("read state file: %w", err)
	}
	return scan(f, size, visit), nil
}
