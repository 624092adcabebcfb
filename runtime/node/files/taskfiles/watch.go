package taskfiles

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// inotifyWatcher notifies followers of file changes. All followers share one inotify instance, because the instances per
// user are limited. The instance exists while a file is followed.
type inotifyWatcher struct {
	mu                    sync.Mutex
	instance              *inotifyInstance       // nil while no file is followed
	fileByWatchDescriptor map[int32]*watchedFile // inotify watch descriptor -> file
}

// inotifyInstance is a kernel inotify instance, with the goroutine that reads its events.
type inotifyInstance struct {
	fd         int // file's descriptor; file.Fd() would make the reader block
	file       *os.File
	readerDone chan struct{} // closed when readEvents returns
}

// watchedFile is one file and how many followers it has.
type watchedFile struct {
	followerCount int
	changed       chan struct{} // channel, closed and replaced at each file change
}

// watchMask are the events for a follower. IN_ATTRIB reports a changed link count, and so the removal of a file that a
// process has open, for which the kernel does not send IN_DELETE_SELF yet.
const watchMask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// watchFile starts to watch an open file. nextChange returns a channel that is closed at the next file change; the caller
// must call stop, which may be called twice. On an error, for example because a kernel limit is reached, the caller can
// poll the file instead.
func (w *inotifyWatcher) watchFile(f *os.File) (nextChange func() <-chan struct{}, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openInstanceLocked(); err != nil {
		return nil, nil, err
	}
	wd, err := unix.InotifyAddWatch(w.instance.fd, safepath.ProcPath(int(f.Fd())), watchMask)
	if err != nil {
		w.closeInstanceIfIdleLocked()
		return nil, nil, err
	}
	watchDescriptor := int32(wd)
	file := w.fileByWatchDescriptor[watchDescriptor] // the kernel returns the same watch descriptor for the same file
	if file == nil {
		file = &watchedFile{changed: make(chan struct{})}
		w.fileByWatchDescriptor[watchDescriptor] = file
	}
	file.followerCount++
	nextChange = func() <-chan struct{} {
		w.mu.Lock()
		defer w.mu.Unlock()
		return file.changed
	}
	return nextChange, sync.OnceFunc(func() { w.removeFollower(watchDescriptor, file) }), nil
}

func (w *inotifyWatcher) openInstanceLocked() error {
	if w.instance != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	w.instance = &inotifyInstance{fd, os.NewFile(uintptr(fd), "inotify"), make(chan struct{})}
	w.fileByWatchDescriptor = make(map[int32]*watchedFile)
	go w.readEvents(w.instance) // the last follower waits until readEvents has returned
	return nil
}

// closeInstanceIfIdleLocked closes the inotify instance if no file is watched. It then returns
// readerDone, otherwise nil.
func (w *inotifyWatcher) closeInstanceIfIdleLocked() (readerDone <-chan struct{}) {
	if len(w.fileByWatchDescriptor) > 0 {
		return nil
	}
	last := w.instance
	last.file.Close()
	w.instance = nil
	return last.readerDone
}

// removeFollower removes a file's watch with its last follower, and closes the inotify instance with the last watch.
func (w *inotifyWatcher) removeFollower(watchDescriptor int32, file *watchedFile) {
	w.mu.Lock()
	var readerEnded <-chan struct{}
	if file.followerCount--; file.followerCount == 0 {
		if w.fileByWatchDescriptor[watchDescriptor] == file {
			delete(w.fileByWatchDescriptor, watchDescriptor)
		}
		// InotifyRmWatch fails if the file was deleted, because the kernel has removed the watch with the file.
		_, _ = unix.InotifyRmWatch(w.instance.fd, uint32(watchDescriptor))
		readerEnded = w.closeInstanceIfIdleLocked()
	}
	w.mu.Unlock()
	if readerEnded != nil {
		<-readerEnded
	}
}

// readEvents wakes the changed files' followers until the inotify instance is closed.
func (w *inotifyWatcher) readEvents(instance *inotifyInstance) {
	defer close(instance.readerDone)
	buf := make([]byte, 4<<10)
	for {
		n, err := instance.file.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			watchDescriptor := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			b = b[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(b[12:]):]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				for _, file := range w.fileByWatchDescriptor {
					file.notifyFollowers()
				}
			} else if file := w.fileByWatchDescriptor[watchDescriptor]; file != nil {
				file.notifyFollowers()
			}
		}
		w.mu.Unlock()
	}
}

// notifyFollowers wakes the file's followers. The caller holds watcher.mu.
func (f *watchedFile) notifyFollowers() {
	close(f.changed)
	f.changed = make(chan struct{})
}
