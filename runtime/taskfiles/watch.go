package taskfiles

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher wakes those who wait for files to change. There is one inotify for all
// of them, since a user has few; it is there as long as somebody waits.
type watcher struct {
	mu      sync.Mutex
	inotify *inotify           // nil while nobody waits
	watched map[int32]*watched // by the number that the kernel gave
}

// inotify is one queue of the kernel.
type inotify struct {
	fd    int // Fd of the file would have its reader block
	file  *os.File
	ended chan struct{} // closed by its reader
}

// watched is one file, and all who wait for it.
type watched struct {
	followers int
	changed   chan struct{} // closed and replaced when something has happened
}

// changes are what a follower wants to know of. The number of names is one of
// the attributes, so a removal is an event even if somebody has the file open.
const changes = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// watch begins to watch an open file. next returns a channel that is closed at
// the next change; stop ends the watching. An error is no more than the limits of
// the kernel.
func (w *watcher) watch(f *os.File) (next func() <-chan struct{}, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(); err != nil {
		return nil, nil, err
	}
	n, err := unix.InotifyAddWatch(w.inotify.fd, procPath(int(f.Fd())), changes)
	if err != nil {
		w.closeIfIdleLocked()
		return nil, nil, err
	}
	number := int32(n)
	file := w.watched[number] // the kernel knows the same file again
	if file == nil {
		file = &watched{changed: make(chan struct{})}
		w.watched[number] = file
	}
	file.followers++
	next = func() <-chan struct{} {
		w.mu.Lock()
		defer w.mu.Unlock()
		return file.changed
	}
	return next, sync.OnceFunc(func() { w.forget(number, file) }), nil
}

func (w *watcher) openLocked() error {
	if w.inotify != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	w.inotify = &inotify{fd, os.NewFile(uintptr(fd), "inotify"), make(chan struct{})}
	w.watched = make(map[int32]*watched)
	go w.readEvents(w.inotify) // who leaves last waits for it
	return nil
}

// closeIfIdleLocked returns a channel that is closed when nothing is left, nil if
// there is nothing to wait for.
func (w *watcher) closeIfIdleLocked() <-chan struct{} {
	if len(w.watched) > 0 {
		return nil
	}
	last := w.inotify
	last.file.Close()
	w.inotify = nil
	return last.ended
}

func (w *watcher) forget(number int32, file *watched) {
	w.mu.Lock()
	var ended <-chan struct{}
	if file.followers--; file.followers == 0 {
		if w.watched[number] == file {
			delete(w.watched, number)
		}
		// The file may be gone, and the watch with it.
		_, _ = unix.InotifyRmWatch(w.inotify.fd, uint32(number))
		ended = w.closeIfIdleLocked()
	}
	w.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// readEvents wakes the followers until the inotify is closed.
func (w *watcher) readEvents(queue *inotify) {
	defer close(queue.ended)
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
				for _, file := range w.watched {
					file.wake()
				}
			} else if file := w.watched[number]; file != nil {
				file.wake()
			}
		}
		w.mu.Unlock()
	}
}

func (f *watched) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}
