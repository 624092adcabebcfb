package logs

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
)

// outputStart is the start of the output that was moved into a file at a time.
type outputStart struct {
	fileIndex int64
	offset    int64
}

// noteOutput notes that output was moved to an offset of the open file. The output of one turn has one time,
// which recordArrivalTimes stores after followers were notified.
func (s *stream) noteOutput(offset int64) {
	if n := len(s.arrived); n == 0 || s.arrived[n-1].fileIndex != s.fileIndex {
		s.arrived = append(s.arrived, outputStart{s.fileIndex, offset})
	}
}

// recordArrivalTimes stores that the noted output has arrived now. Without a record, the output has the time
// of the previous record: no failure here affects the output.
func (s *stream) recordArrivalTimes(now time.Time) {
	for _, start := range s.arrived {
		if slices.Contains(s.fileIndexes, start.fileIndex) {
			s.recordArrivalTime(start, now)
		}
	}
	s.arrived = s.arrived[:0]
}

func (s *stream) recordArrivalTime(start outputStart, now time.Time) {
	previous := s.lastArrival
	if start.fileIndex != s.lastArrivalFile {
		previous = logfile.ArrivalTime{}
	} else if now.UnixMilli() == previous.Time.UnixMilli() && start.offset > previous.Offset {
		return
	}
	next := logfile.ArrivalTime{Offset: start.offset, Time: now}
	var buf [3 * binary.MaxVarintLen64]byte
	record := logfile.AppendArrivalTime(buf[:0], previous, next)
	// A task can write faster than its log file grows in proportion: arrival times take at most a quarter
	// of the space of the log.
	if err := appendToFile(s.dirFD, logfile.ArrivalTimesFile(logfile.Name(s.key.filePrefix(), start.fileIndex)), record, s.limits.MaxFileSize/4); err != nil {
		next = logfile.ArrivalTime{}
	}
	s.lastArrival, s.lastArrivalFile = next, start.fileIndex
}

var errFileFull = errors.New("file has its maximum size")

// appendToFile appends data to a file in dir, and makes the file if it does not exist. The file is not kept
// open, so that a stream needs no further descriptor.
func appendToFile(dir int, name string, data []byte, maxSize int64) error {
	fd, size, err := openLogFile(dir, name, unix.O_WRONLY)
	if errors.Is(err, unix.ENOENT) {
		fd, err = createLogFile(dir, name)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if size+int64(len(data)) > maxSize {
		return errFileFull
	}
	if n, err := unix.Pwrite(fd, data, size); err != nil || n < len(data) {
		return errors.Join(err, unix.EIO)
	}
	return nil
}
