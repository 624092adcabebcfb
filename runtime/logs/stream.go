package logs

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tailWindow is the size of the end of a file in which lines are not split.
	tailWindow = 32 << 10

	// turnBytes is how many bytes of one stream are moved before the next stream is served.
	turnBytes = 4 << 20

	// largePipeSize is the capacity of the FIFO of a task that writes faster than the collector reads.
	largePipeSize = 1 << 20

	// blockTimeout is how long a task blocks while the file system rejects its output, before output
	// is dropped.
	blockTimeout = 2 * time.Second

	retryWhileWaiting  = 100 * time.Millisecond
	retryWhileDropping = time.Second
)

// tools are shared by all streams of a process, which use them one after another.
type tools struct {
	null    int    // /dev/null
	scratch [2]int // a pipe for copies
	buf     []byte // of tailWindow bytes
}

func newTools() (*tools, error) {
	t := &tools{buf: make([]byte, tailWindow)}
	var err error
	if t.null, err = unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	if err := unix.Pipe2(t.scratch[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		unix.Close(t.null)
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	return t, nil
}

func (t *tools) close() {
	for _, fd := range [...]int{t.null, t.scratch[0], t.scratch[1]} {
		unix.Close(fd)
	}
}

// stream moves the output of one task from its FIFO into files. All its state can be rebuilt from
// the FIFO and the files, so that the process may be killed between any two instructions.
type stream struct {
	key    key
	limits Limits
	fifo   int
	dir    int

	file      int // descriptor of the open file, or -1
	index     int64
	size      int64
	files     []int64 // numbers of the existing files, oldest first
	lineStart bool    // the file ends with a line end; meaningful if tailKnown
	tailKnown bool

	enlarged bool // the FIFO was enlarged, or cannot be
	copies   bool // the file system cannot splice
	fail     failure
	lost     int64 // bytes dropped in the current or last failure
	moved    int64 // bytes read from the FIFO, written or dropped
}

// failure is the state of a stream whose output the file system rejects.
type failure struct {
	err      error // nil without a failure
	since    time.Time
	retry    time.Time
	dropping bool
	dropped  int64
}

// open sets the position at which a stream continues: the end of its newest file.
func (s *stream) open() error {
	files, err := indexes(s.dir, s.key.prefix())
	if err != nil {
		return err
	}
	s.files = files
	if len(files) > 0 {
		s.index = files[len(files)-1]
		fd, size, err := openLog(s.dir, fileName(s.key.prefix(), s.index), unix.O_RDWR)
		if err == nil {
			s.file, s.size, s.tailKnown = fd, size, false
			s.prune()
			return nil
		}
		if !errors.Is(err, errNotOurs) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) {
			return fmt.Errorf("open %s: %w", fileName(s.key.prefix(), s.index), err)
		}
	} else {
		s.index = -1
	}
	return s.rotate()
}

// rotate continues in a new file.
func (s *stream) rotate() error {
	for index, tries := s.index+1, 0; ; index, tries = index+1, tries+1 {
		name := fileName(s.key.prefix(), index)
		fd, err := createLog(s.dir, name)
		if errors.Is(err, unix.EEXIST) && tries < 10 {
			// A task has made files with the names of this stream: continue after the last of
			// them.
			if files, err := indexes(s.dir, s.key.prefix()); err == nil && len(files) > 0 {
				index = max(index, files[len(files)-1])
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
		if s.file >= 0 {
			unix.Close(s.file)
		}
		s.file, s.index, s.size = fd, index, 0
		s.files = append(s.files, index)
		s.tailKnown, s.lineStart = true, true
		s.prune()
		return nil
	}
}

// prune removes the oldest files until their number is within the limit.
func (s *stream) prune() {
	for len(s.files) > s.limits.MaxFiles {
		_ = unix.Unlinkat(s.dir, fileName(s.key.prefix(), s.files[0]), 0) // the file may be removed already, or not be a file
		s.files = s.files[1:]
	}
}

func (s *stream) close() {
	for _, fd := range [...]int{s.fifo, s.dir, s.file} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	s.fifo, s.dir, s.file = -1, -1, -1
}

// drain moves the content of the FIFO, up to turnBytes. It reports whether there may be more now.
// While the file system rejects the output, the caller calls drain again at s.fail.retry.
func (s *stream) drain(t *tools, now time.Time) (more bool) {
	if s.fail.err != nil {
		if now.Before(s.fail.retry) {
			return s.drop(t)
		}
		if err := s.writeLossMarker(); err != nil {
			s.failed(err, now)
			return s.drop(t)
		}
	}
	for left := int64(turnBytes); left > 0; {
		n, err := s.step(t, left)
		switch {
		case errors.Is(err, unix.EAGAIN):
			s.fail = failure{} // the file system accepts output again
			return false
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			s.failed(err, now)
			return s.drop(t)
		case n > 0:
			s.fail = failure{}
		}
		left -= n
	}
	return true
}

// step moves one piece, or rotates. EAGAIN means that the FIFO is empty.
func (s *stream) step(t *tools, limit int64) (int64, error) {
	if s.file < 0 {
		return 0, s.open()
	}
	s.syncSize()
	room := s.limits.MaxFileSize - s.size
	if room > tailWindow {
		n, err := s.move(t, min(room-tailWindow, limit))
		s.tailKnown = false
		return n, err
	}

	// The end of a file is near: it takes whole lines that fit. Anything else in the FIFO starts
	// the next file at once.
	avail, err := unix.IoctlGetInt(s.fifo, unix.TIOCINQ)
	if err != nil {
		return 0, fmt.Errorf("look into FIFO: %w", err)
	}
	if avail == 0 {
		return 0, unix.EAGAIN
	}
	if room <= 0 {
		return 0, s.rotate()
	}
	copied, err := t.peek(s.fifo, min(room, int64(avail)))
	if err != nil {
		return 0, err
	}
	n := int64(bytes.LastIndexByte(copied, '\n') + 1)
	if n == 0 {
		atStart, err := s.atLineStart()
		if err != nil {
			return 0, err
		}
		if atStart && s.size > 0 {
			return 0, s.rotate()
		}
		// The line began before the window, or fills the whole file: only lines shorter than the
		// window are never split.
		n = int64(len(copied))
	}
	lineStart := copied[n-1] == '\n'
	moved, err := s.move(t, n)
	s.lineStart, s.tailKnown = lineStart, moved == n
	return moved, err
}

// syncSize continues at the current end of the file: the file may have been truncated by hand, and
// bytes at the former end would come after a gap of NULs. The kernel does not splice to a file
// that was opened with O_APPEND.
func (s *stream) syncSize() {
	var st unix.Stat_t
	if s.file >= 0 && unix.Fstat(s.file, &st) == nil && st.Size != s.size {
		s.size, s.tailKnown = st.Size, false
	}
}

// move moves up to n bytes from the FIFO to the end of the file.
func (s *stream) move(t *tools, n int64) (int64, error) {
	if s.copies {
		return s.copy(t, n)
	}
	off := s.size
	moved, err := unix.Splice(s.fifo, nil, s.file, &off, int(n), unix.SPLICE_F_NONBLOCK)
	if errors.Is(err, unix.EINVAL) {
		s.copies = true
		return s.copy(t, n)
	}
	if err != nil {
		return 0, err
	}
	if moved == 0 {
		return 0, unix.EAGAIN // the FIFO has no writer and is empty
	}
	s.size += moved
	s.moved += moved
	if !s.enlarged && moved >= tailWindow && moved <= 64<<10 {
		s.enlarge()
	}
	return moved, nil
}

// copy is move for a file system without splice. If the process is killed between the write and
// the removal from the FIFO, up to 32 KiB are written twice.
func (s *stream) copy(t *tools, n int64) (int64, error) {
	b, err := t.peek(s.fifo, n)
	if err != nil {
		return 0, err
	}
	written, err := unix.Pwrite(s.file, b, s.size)
	if err != nil {
		return 0, err
	}
	s.size += int64(written)
	for left := written; left > 0; {
		m, err := unix.Splice(s.fifo, nil, t.null, nil, left, unix.SPLICE_F_NONBLOCK)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return int64(written), fmt.Errorf("remove copied output: %w", err)
		}
		left -= int(max(m, 0))
	}
	s.moved += int64(written)
	return int64(written), nil
}

// enlarge enlarges a FIFO that its task has filled.
func (s *stream) enlarge() {
	avail, err := unix.IoctlGetInt(s.fifo, unix.TIOCINQ)
	if err == nil && avail >= tailWindow {
		s.enlarged = true
		_, _ = unix.FcntlInt(uintptr(s.fifo), unix.F_SETPIPE_SZ, largePipeSize) // a limit of the user may forbid it
	}
}

// peek returns a copy of the first bytes in a FIFO, which stay there. It is valid until the next
// call. It may be shorter than n, and is not empty.
func (t *tools) peek(fifo int, n int64) ([]byte, error) {
	n, err := unix.Tee(fifo, t.scratch[1], int(min(n, int64(len(t.buf)))), unix.SPLICE_F_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, unix.EAGAIN
	}
	for got := 0; got < int(n); {
		m, err := unix.Read(t.scratch[0], t.buf[got:n])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || m == 0 {
			return nil, fmt.Errorf("read copied output: %w", errors.Join(err, unix.EIO))
		}
		got += m
	}
	return t.buf[:n], nil
}

// atLineStart reports whether the file ends with a line end, or is empty.
func (s *stream) atLineStart() (bool, error) {
	if !s.tailKnown {
		s.lineStart = true
		if s.size > 0 {
			var last [1]byte
			n, err := unix.Pread(s.file, last[:], s.size-1)
			if err != nil {
				return false, fmt.Errorf("read the end of %s: %w", fileName(s.key.prefix(), s.index), err)
			}
			s.lineStart = n == 1 && last[0] == '\n'
		}
		s.tailKnown = true
	}
	return s.lineStart, nil
}

// failed records that the file system rejected output.
func (s *stream) failed(err error, now time.Time) {
	if s.fail.err == nil {
		s.fail.since = now
		s.lost = 0
	}
	s.fail.err = err
	if s.fail.dropping || now.Sub(s.fail.since) >= blockTimeout {
		s.fail.dropping = true
		s.fail.retry = now.Add(retryWhileDropping)
	} else {
		s.fail.retry = now.Add(retryWhileWaiting)
	}
}

// drop discards the content of the FIFO, if the failure has lasted longer than blockTimeout.
func (s *stream) drop(t *tools) (more bool) {
	if !s.fail.dropping {
		return false
	}
	for left := int64(turnBytes); left > 0; {
		n, err := unix.Splice(s.fifo, nil, t.null, nil, int(left), unix.SPLICE_F_NONBLOCK)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return false
		}
		s.fail.dropped += n
		s.lost += n
		s.moved += n
		left -= n
	}
	return true
}

// writeLossMarker writes a line with the number of lost bytes before output continues.
func (s *stream) writeLossMarker() error {
	if s.fail.dropped == 0 {
		return nil
	}
	if s.file < 0 {
		if err := s.open(); err != nil {
			return err
		}
	}
	s.syncSize()
	line := fmt.Sprintf("[nomad-lite: %d bytes of output lost: %v]\n", s.fail.dropped, s.fail.err)
	atStart, err := s.atLineStart()
	if err != nil {
		return err
	}
	if !atStart {
		line = "\n" + line
	}
	n, err := unix.Pwrite(s.file, []byte(line), s.size)
	if err == nil && n < len(line) {
		err = unix.ENOSPC
	}
	if err != nil {
		_ = unix.Ftruncate(s.file, s.size) // removes a partial line
		return err
	}
	s.size += int64(n)
	s.lineStart, s.tailKnown = true, true
	s.fail.dropped = 0
	return nil
}

// ended reports whether the FIFO is empty and has no writer.
func (s *stream) ended() bool {
	avail, err := unix.IoctlGetInt(s.fifo, unix.TIOCINQ)
	return err == nil && avail == 0 && !hasWriter(s.fifo)
}

func hasWriter(fifo int) bool {
	poll := []unix.PollFd{{Fd: int32(fifo), Events: unix.POLLIN}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLHUP == 0
}
