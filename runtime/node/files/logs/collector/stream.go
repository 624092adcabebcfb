package collector

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

const (
	// wholeLineTailSize is how many bytes before a file's maximum size only whole lines are written.
	wholeLineTailSize = 32 << 10

	// maxDrainBytes is how many bytes are moved before another look at all streams, so that no stream waits long. Streams ready at
	// the same time share it, but each may move minDrainBytes. Otherwise a stream with a writer on another CPU, which fills the
	// FIFO while it is drained, would get most of the time.
	maxDrainBytes = 4 << 20
	minDrainBytes = 64 << 10

	// largePipeSize is the FIFO capacity for a task that writes faster than the collector reads.
	largePipeSize = 1 << 20

	// blockBeforeDropTimeout is how long output stays in the FIFO, and the task blocks, while the file system rejects the output.
	// After that, output is dropped.
	blockBeforeDropTimeout = 2 * time.Second

	blockedRetryDelay  = 100 * time.Millisecond // delay before the next write while the task blocks
	droppingRetryDelay = time.Second            // delay before the next write while output is dropped
)

// spliceTools are descriptors and a buffer, used by all streams in the process, one after another.
type spliceTools struct {
	devNullFD   int    // /dev/null
	scratchPipe [2]int // pipe to which peek copies output with tee; empty between calls
	peekBuffer  []byte // peek's buffer: wholeLineTailSize bytes
}

func newSpliceTools() (*spliceTools, error) {
	t := &spliceTools{peekBuffer: make([]byte, wholeLineTailSize)}
	var err error
	if t.devNullFD, err = unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	if err := unix.Pipe2(t.scratchPipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		unix.Close(t.devNullFD)
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	return t, nil
}

func (t *spliceTools) close() {
	for _, fd := range [...]int{t.devNullFD, t.scratchPipe[0], t.scratchPipe[1]} {
		unix.Close(fd)
	}
}

// stream moves a task's output from one FIFO into files. All its state can be rebuilt from the FIFO and the files, so the
// process may be killed between any two instructions.
type stream struct {
	key      collectorwire.StreamKey
	limits   collectorwire.StreamLimits
	fifoFD   int
	logDirFD int

	fileFD               int     // the open file's descriptor, or -1; the next output opens the newest file
	usedFileSinceCheck   bool    // fileFD was used since the last closeIdleFiles call
	fileIndex            int64   // the open file's number
	fileSize             int64   // the open file's size in bytes
	fileIndexes          []int64 // the existing files' numbers, oldest first
	endsWithNewline      bool    // the open file is empty or ends with a line end; valid if endsWithNewlineKnown
	endsWithNewlineKnown bool    // endsWithNewline is valid

	triedToEnlargeFIFO      bool // enlargeFIFOIfFull was called, and has succeeded or failed
	fsCannotSplice          bool // the file system cannot splice
	writeFailure            writeFailure
	lastFailureDroppedBytes int64 // bytes dropped in the current or last failure
	fifoReadBytes           int64 // bytes read from the FIFO, whether written or dropped

	totalDroppedBytes int64 // bytes dropped in all failures

	outputWithoutArrivalTime []outputStartPosition // output without a stored arrival time
	lastArrival              logfile.ArrivalTime   // last stored arrival time; the zero Time if it is unknown
	lastArrivalFileIndex     int64                 // number of lastArrival's log file
}

// writeFailure is a stream's state while the file system rejects its output, otherwise the zero value.
type writeFailure struct {
	lastErr                   error     // last error; nil without a failure
	failedSince               time.Time // when the first error occurred
	retryAt                   time.Time // when to try the next write
	isDropping                bool      // output is dropped, instead of blocking the task
	droppedBytesWithoutMarker int64     // dropped bytes not yet counted by a loss marker
}

// openNewestOrNewFile opens the stream's newest file, so that output continues at its end. It starts a new file if there is
// none, or if a task has replaced it.
func (s *stream) openNewestOrNewFile() error {
	files, err := collectorwire.ListFileIndexes(s.logDirFD, s.key.FilePrefix())
	if err != nil {
		return err
	}
	s.fileIndexes = files
	if len(files) > 0 {
		s.fileIndex = files[len(files)-1]
		fd, size, err := collectorwire.OpenLogFile(s.logDirFD, logfile.Name(s.key.FilePrefix(), s.fileIndex), unix.O_RDWR)
		if err == nil {
			s.fileFD, s.fileSize, s.endsWithNewlineKnown = fd, size, false
			s.pruneFiles()
			return nil
		}
		if !errors.Is(err, collectorwire.ErrForeignFile) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) {
			return fmt.Errorf("open %s: %w", logfile.Name(s.key.FilePrefix(), s.fileIndex), err)
		}
	} else {
		s.fileIndex = -1
	}
	return s.rotateFile()
}

// closeFileIfRemoved closes the open file if its name was removed: output then continues in a file that can be found.
func (s *stream) closeFileIfRemoved() {
	var st unix.Stat_t
	if s.fileFD >= 0 && unix.Fstat(s.fileFD, &st) == nil && st.Nlink == 0 {
		s.closeFile()
		s.fileIndexes = nil
	}
}

// closeFile closes the open file, if there is one.
func (s *stream) closeFile() {
	if s.fileFD >= 0 {
		unix.Close(s.fileFD)
		s.fileFD = -1
	}
}

// rotateFile starts a new file, and removes files beyond the limit.
func (s *stream) rotateFile() error {
	for index, tries := s.fileIndex+1, 0; ; index, tries = index+1, tries+1 {
		name := logfile.Name(s.key.FilePrefix(), index)
		fd, err := createLogFile(s.logDirFD, name)
		if errors.Is(err, unix.EEXIST) && tries < 10 {
			// A task has made a file with the next log file's name: try the number after the highest one in use.
			if files, err := collectorwire.ListFileIndexes(s.logDirFD, s.key.FilePrefix()); err == nil && len(files) > 0 {
				index = max(index, files[len(files)-1])
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
		if s.fileFD >= 0 {
			unix.Close(s.fileFD)
		}
		s.fileFD, s.fileIndex, s.fileSize = fd, index, 0
		s.fileIndexes = append(s.fileIndexes, index)
		s.endsWithNewlineKnown, s.endsWithNewline = true, true
		s.pruneFiles()
		return nil
	}
}

// pruneFiles removes the oldest files until their number is within the limit.
func (s *stream) pruneFiles() {
	for len(s.fileIndexes) > s.limits.MaxFiles {
		// Errors are ignored: a file may be removed already, or be a directory made by a task.
		name := logfile.Name(s.key.FilePrefix(), s.fileIndexes[0])
		_ = unix.Unlinkat(s.logDirFD, name, 0)
		_ = unix.Unlinkat(s.logDirFD, logfile.ArrivalTimesFile(name), 0)
		s.fileIndexes = s.fileIndexes[1:]
	}
}

func (s *stream) close() {
	for _, fd := range [...]int{s.fifoFD, s.logDirFD, s.fileFD} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	s.fifoFD, s.logDirFD, s.fileFD = -1, -1, -1
}

// drainFIFO moves the FIFO's content, up to maxBytes, into files. It reports whether the FIFO may have more. While the file
// system rejects the output, the caller must call drainFIFO again at s.writeFailure.retryAt.
func (s *stream) drainFIFO(t *spliceTools, now time.Time, maxBytes int64) (more bool) {
	if s.writeFailure.lastErr != nil {
		if now.Before(s.writeFailure.retryAt) {
			return s.dropOutputIfDropping(t)
		}
		if err := s.writeLossMarker(); err != nil {
			s.recordFailure(err, now)
			return s.dropOutputIfDropping(t)
		}
	}
	for left := maxBytes; left > 0; {
		n, err := s.moveOutputOrRotateFile(t, left)
		switch {
		case errors.Is(err, unix.EAGAIN):
			s.writeFailure = writeFailure{} // the file system accepts output again
			return false
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			s.recordFailure(err, now)
			return s.dropOutputIfDropping(t)
		case n > 0:
			s.writeFailure = writeFailure{}
		}
		left -= n
	}
	return true
}

// moveOutputOrRotateFile moves up to maxBytes bytes with one system call, or opens or rotates the file and returns 0. EAGAIN:
// the FIFO is empty.
func (s *stream) moveOutputOrRotateFile(t *spliceTools, maxBytes int64) (movedBytes int64, err error) {
	if s.fileFD < 0 {
		return 0, s.openNewestOrNewFile()
	}
	s.refreshFileSize()
	room := s.limits.MaxFileBytes - s.fileSize
	if room > wholeLineTailSize {
		n, err := s.moveOutput(t, min(room-wholeLineTailSize, maxBytes))
		s.endsWithNewlineKnown = false
		return n, err
	}

	// Near its size limit, a file gets only whole lines that fit. The FIFO's remaining content starts the next file at once.
	avail, err := unix.IoctlGetInt(s.fifoFD, unix.TIOCINQ)
	if err != nil {
		return 0, fmt.Errorf("look into FIFO: %w", err)
	}
	if avail == 0 {
		return 0, unix.EAGAIN
	}
	if room <= 0 {
		return 0, s.rotateFile()
	}
	copied, err := t.peek(s.fifoFD, min(room, int64(avail)))
	if err != nil {
		return 0, err
	}
	n := int64(bytes.LastIndexByte(copied, '\n') + 1)
	if n == 0 {
		atStart, err := s.isAtLineStart()
		if err != nil {
			return 0, err
		}
		if atStart && s.fileSize > 0 {
			return 0, s.rotateFile()
		}
		// The line began earlier in this file, or is as long as the file may be: it must be split. Lines
		// shorter than wholeLineTailSize are never split.
		n = int64(len(copied))
	}
	endsLine := copied[n-1] == '\n'
	moved, err := s.moveOutput(t, n)
	s.endsWithNewline, s.endsWithNewlineKnown = endsLine, moved == n
	return moved, err
}

// refreshFileSize sets fileSize, where the next output is written, to the file's current size: an operator may have truncated
// the file, and output at the former end would come after NULs. O_APPEND would do the same, but the kernel does not splice to a
// file opened with it.
func (s *stream) refreshFileSize() {
	var st unix.Stat_t
	if s.fileFD >= 0 && unix.Fstat(s.fileFD, &st) == nil && st.Size != s.fileSize {
		s.fileSize, s.endsWithNewlineKnown = st.Size, false
	}
}

// moveOutput moves up to maxBytes bytes from the FIFO to the file's end.
func (s *stream) moveOutput(t *spliceTools, maxBytes int64) (movedBytes int64, err error) {
	if s.fsCannotSplice {
		return s.moveOutputWithoutSplice(t, maxBytes)
	}
	off := s.fileSize
	moved, err := unix.Splice(s.fifoFD, nil, s.fileFD, &off, int(maxBytes), unix.SPLICE_F_NONBLOCK)
	if errors.Is(err, unix.EINVAL) {
		s.fsCannotSplice = true
		return s.moveOutputWithoutSplice(t, maxBytes)
	}
	if err != nil {
		return 0, err
	}
	if moved == 0 {
		return 0, unix.EAGAIN // the FIFO has no writer and is empty
	}
	s.addOutputWithoutArrivalTime(s.fileSize)
	s.fileSize += moved
	s.fifoReadBytes += moved
	if !s.triedToEnlargeFIFO && moved >= wholeLineTailSize && moved <= 64<<10 {
		s.enlargeFIFOIfFull()
	}
	return moved, nil
}

// moveOutputWithoutSplice is moveOutput for a file system without splice. If the process is killed between the write and
// the removal from the FIFO, up to 32 KiB are written twice.
func (s *stream) moveOutputWithoutSplice(t *spliceTools, maxBytes int64) (movedBytes int64, err error) {
	b, err := t.peek(s.fifoFD, maxBytes)
	if err != nil {
		return 0, err
	}
	written, err := unix.Pwrite(s.fileFD, b, s.fileSize)
	if err != nil {
		return 0, err
	}
	s.addOutputWithoutArrivalTime(s.fileSize)
	s.fileSize += int64(written)
	for left := written; left > 0; {
		m, err := unix.Splice(s.fifoFD, nil, t.devNullFD, nil, left, unix.SPLICE_F_NONBLOCK)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return int64(written), fmt.Errorf("remove copied output: %w", err)
		}
		left -= int(max(m, 0))
	}
	s.fifoReadBytes += int64(written)
	return int64(written), nil
}

// enlargeFIFOIfFull enlarges the FIFO if the task has already filled much of it.
func (s *stream) enlargeFIFOIfFull() {
	avail, err := unix.IoctlGetInt(s.fifoFD, unix.TIOCINQ)
	if err == nil && avail >= wholeLineTailSize {
		s.triedToEnlargeFIFO = true
		_, _ = unix.FcntlInt(uintptr(s.fifoFD), unix.F_SETPIPE_SZ, largePipeSize) // fails beyond the user's pipe page limit; the FIFO then keeps its size
	}
}

// peek returns a copy of up to maxBytes from a FIFO's start, at least one byte, without removing them. The copy is valid until
// the next call. EAGAIN: the FIFO is empty.
func (t *spliceTools) peek(fifoFD int, maxBytes int64) ([]byte, error) {
	copied, err := unix.Tee(fifoFD, t.scratchPipe[1], int(min(maxBytes, int64(len(t.peekBuffer)))), unix.SPLICE_F_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if copied == 0 {
		return nil, unix.EAGAIN
	}
	for got := 0; got < int(copied); {
		m, err := unix.Read(t.scratchPipe[0], t.peekBuffer[got:copied])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || m == 0 {
			return nil, fmt.Errorf("read copied output: %w", errors.Join(err, unix.EIO))
		}
		got += m
	}
	return t.peekBuffer[:copied], nil
}

// isAtLineStart reports whether the file ends with a line end, or is empty.
func (s *stream) isAtLineStart() (bool, error) {
	if !s.endsWithNewlineKnown {
		s.endsWithNewline = true
		if s.fileSize > 0 {
			var lastByte [1]byte
			n, err := unix.Pread(s.fileFD, lastByte[:], s.fileSize-1)
			if err != nil {
				return false, fmt.Errorf("read the end of %s: %w", logfile.Name(s.key.FilePrefix(), s.fileIndex), err)
			}
			s.endsWithNewline = n == 1 && lastByte[0] == '\n'
		}
		s.endsWithNewlineKnown = true
	}
	return s.endsWithNewline, nil
}

// recordFailure records rejected output, and sets the time for the next write.
func (s *stream) recordFailure(err error, now time.Time) {
	if s.writeFailure.lastErr == nil {
		s.writeFailure.failedSince = now
		s.lastFailureDroppedBytes = 0
	}
	s.writeFailure.lastErr = err
	if s.writeFailure.isDropping || now.Sub(s.writeFailure.failedSince) >= blockBeforeDropTimeout {
		s.writeFailure.isDropping = true
		s.writeFailure.retryAt = now.Add(droppingRetryDelay)
	} else {
		s.writeFailure.retryAt = now.Add(blockedRetryDelay)
	}
}

// dropOutputIfDropping discards up to maxDrainBytes from the FIFO if isDropping is set. It reports whether the FIFO may have
// more.
func (s *stream) dropOutputIfDropping(t *spliceTools) (more bool) {
	if !s.writeFailure.isDropping {
		return false
	}
	for left := int64(maxDrainBytes); left > 0; {
		n, err := unix.Splice(s.fifoFD, nil, t.devNullFD, nil, int(left), unix.SPLICE_F_NONBLOCK)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return false
		}
		s.writeFailure.droppedBytesWithoutMarker += n
		s.lastFailureDroppedBytes += n
		s.totalDroppedBytes += n
		s.fifoReadBytes += n
		left -= n
	}
	return true
}

// writeLossMarker writes a line that counts the dropped bytes, if there are any, before output continues.
func (s *stream) writeLossMarker() error {
	if s.writeFailure.droppedBytesWithoutMarker == 0 {
		return nil
	}
	if s.fileFD < 0 {
		if err := s.openNewestOrNewFile(); err != nil {
			return err
		}
	}
	s.refreshFileSize()
	line := s.lossMarkerText(s.writeFailure.droppedBytesWithoutMarker)
	atStart, err := s.isAtLineStart()
	if err != nil {
		return err
	}
	if !atStart {
		line = "\n" + line
	}
	n, err := unix.Pwrite(s.fileFD, []byte(line), s.fileSize)
	if err == nil && n < len(line) {
		err = unix.ENOSPC
	}
	if err != nil {
		_ = unix.Ftruncate(s.fileFD, s.fileSize) // removes a partial line
		return err
	}
	s.fileSize += int64(n)
	s.endsWithNewline, s.endsWithNewlineKnown = true, true
	s.writeFailure.droppedBytesWithoutMarker = 0
	return nil
}

func (s *stream) lossMarkerText(lostBytes int64) string {
	return fmt.Sprintf("[nomad-lite: %d bytes of output lost: %v]\n", lostBytes, s.writeFailure.lastErr)
}

// replaceTailByLossMarker overwrites the file's last lines with the loss marker when the stream ends while output is dropped,
// because a full file system has no space for another line. The overwritten output counts as lost. A file shorter than the
// marker is not changed.
func (s *stream) replaceTailByLossMarker() {
	if s.writeFailure.droppedBytesWithoutMarker == 0 || s.fileFD < 0 {
		return
	}
	s.refreshFileSize()
	tail := make([]byte, min(s.fileSize, wholeLineTailSize))
	if n, err := unix.Pread(s.fileFD, tail, s.fileSize-int64(len(tail))); err != nil || n < len(tail) {
		return
	}
	for start := len(tail) - 1; start >= 0; start-- {
		isLineStart := start > 0 && tail[start-1] == '\n' || int64(start) == s.fileSize-int64(len(tail))
		if !isLineStart && start > 0 {
			continue
		}
		replaced := int64(len(tail) - start)
		line := s.lossMarkerText(s.writeFailure.droppedBytesWithoutMarker + replaced)
		if !isLineStart {
			line = "\n" + line // the whole tail is one line
		}
		if int64(len(line)) > replaced {
			continue
		}
		offset := s.fileSize - replaced
		if n, err := unix.Pwrite(s.fileFD, []byte(line), offset); err != nil || n < len(line) {
			return
		}
		s.fileSize = offset + int64(len(line))
		_ = unix.Ftruncate(s.fileFD, s.fileSize) // after an error, the replaced output's end remains behind the marker
		s.writeFailure.droppedBytesWithoutMarker = 0
		s.lastFailureDroppedBytes += replaced
		s.totalDroppedBytes += replaced
		s.endsWithNewline, s.endsWithNewlineKnown = true, true
		return
	}
}

// hasEnded reports whether the FIFO is empty and has no writer.
func (s *stream) hasEnded() bool {
	avail, err := unix.IoctlGetInt(s.fifoFD, unix.TIOCINQ)
	return err == nil && avail == 0 && !hasWriter(s.fifoFD)
}

// hasWriter reports whether a process has a FIFO's write end open.
func hasWriter(fifoFD int) bool {
	poll := []unix.PollFd{{Fd: int32(fifoFD), Events: unix.POLLIN}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLHUP == 0 // the kernel reports POLLHUP for a FIFO without a writer
}

// createLogFile makes a new log file, and fails with EEXIST if the name exists.
func createLogFile(logDirFD int, name string) (int, error) {
	fd, err := safepath.OpenAt(logDirFD, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchmod(fd, 0o644); err != nil { // the umask may have cleared bits
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
