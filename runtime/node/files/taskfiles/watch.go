package taskfiles

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// watcher notifies followers of file changes. All followers share one inotify queue,
// because the number of queues per user is limited. The queue exists while a file is
// followed.
type watcher struct {
	mu           sync.Mutex
	inotify      *inotifyQueue          // nil without followers
	watchedFiles map[int32]*watchedFile // watched files by inotify watch descriptor
}

// inotifyQueue is one inotify queue of the kernel.
type inotifyQueue struct {
	fd         int // descriptor of file; file.Fd() would make the reader block
	file       *os.File
	readerDone chan struct{} // closed by the reader
}

// watchedFile is one file with its number of followers.
type watchedFile struct {
	followerCount int
	changed       chan struct{} // channel, closed and replaced at each change of the file
}

// watchMask are the events that wake a follower. The number of links is one of the attributes, so a
// removal is an event even if a process has the file open.
const watchMask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// watch starts to watch an open file. next returns a channel that is closed at the next change;
// stop stops watching. An error means only that a limit of the kernel is reached.
func (w *watcher) watch(f *os.File) (next func() <-chan struct{}, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openInotifyLocked(); err != nil {
		return nil, nil, err
	}
	n, err := unix.InotifyAddWatch(w.inotify.fd, safepath.ProcPath(int(f.Fd())), watchMask)
	if err != nil {
		w.closeIfIdleLocked()
		return nil, nil, err
	}
	number := int32(n)
	file := w.watchedFiles[number] // the kernel returns the same watch descriptor for the same file
	if file == nil {
		file = &watchedFile{changed: make(chan struct{})}
		w.watchedFiles[number] = file
	}
	file.followerCount++
	next = func() <-chan struct{} {
		w.mu.Lock()
		defer w.mu.Unlock()
		return file.changed
	}
	return next, sync.OnceFunc(func() { w.unwatch(number, file) }), nil
}

func (w *watcher) openInotifyLocked() error {
	if w.inotify != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	w.inotify = &inotifyQueue{fd, os.NewFile(uintptr(fd), "inotify"), make(chan struct{})}
	w.watchedFiles = make(map[int32]*watchedFile)
	go w.readEvents(w.inotify) // the last follower waits until readEvents has returned
	return nil
}

// closeIfIdleLocked closes the inotify queue if no file is watched. It returns the
// channel that is closed when the reader has returned, or nil if a file is watched.
func (w *watcher) closeIfIdleLocked() <-chan struct{} {
	if len(w.watchedFiles) > 0 {
		return nil
	}
	last := w.inotify
	last.file.Close()
	w.inotify = nil
	return last.readerDone
}

func (w *watcher) unwatch(number int32, file *watchedFile) {
	w.mu.Lock()
	var readerEnded <-chan struct{}
	if file.followerCount--; file.followerCount == 0 {
		if w.watchedFiles[number] == file {
			delete(w.watchedFiles, number)
		}
		// The removal fails if the file was deleted, because its watch is removed with it.
		_, _ = unix.InotifyRmWatch(w.inotify.fd, uint32(number))
		readerEnded = w.closeIfIdleLocked()
	}
	w.mu.Unlock()
	if readerEnded != nil {
		<-readerEnded
	}
}

// readEvents wakes the followers until the inotify queue is closed.
func (w *watcher) readEvents(queue *inotifyQueue) {
	defer close(queue.readerDone)
	buf := make([]byte, 4<<10)
	for {
		n, err := queue.file.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			number := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			b = b[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(b[12:]):]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				for _, file := range w.watchedFiles {
					file.notifyFollowers()
				}
			} else if file := w.watchedFiles[number]; file != nil {
				file.notifyFollowers()
			}
		}
		w.mu.Unlock()
	}
}

func (f *watchedFile) notifyFollowers() {
	close(f.changed)
	f.changed = make(chan struct{})
}
