package collector

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// outputStartPosition is where, in the log files, the first output starts that one drainFIFO call has moved into a file.
type outputStartPosition struct {
	fileIndex int64
	offset    int64
}

// addOutputWithoutArrivalTime records that output was moved to an offset in the open file. All output from one drainFIFO
// call has one arrival time, which storeArrivalTimes stores after followers were notified.
func (s *stream) addOutputWithoutArrivalTime(offset int64) {
	if n := len(s.outputWithoutArrivalTime); n == 0 || s.outputWithoutArrivalTime[n-1].fileIndex != s.fileIndex {
		s.outputWithoutArrivalTime = append(s.outputWithoutArrivalTime, outputStartPosition{s.fileIndex, offset})
	}
}

// storeArrivalTimes stores now as arrival time for output without one. If this fails, readers use an earlier output's
// arrival time, so errors are ignored.
func (s *stream) storeArrivalTimes(now time.Time) {
	for _, start := range s.outputWithoutArrivalTime {
		if slices.Contains(s.fileIndexes, start.fileIndex) {
			s.storeArrivalTime(start, now)
		}
	}
	s.outputWithoutArrivalTime = s.outputWithoutArrivalTime[:0]
}

func (s *stream) storeArrivalTime(start outputStartPosition, now time.Time) {
	previous := s.lastArrival
	if start.fileIndex != s.lastArrivalFileIndex {
		previous = logfile.ArrivalTime{}
	} else if now.UnixMilli() == previous.Time.UnixMilli() && start.offset > previous.Offset {
		return
	}
	next := logfile.ArrivalTime{Offset: start.offset, Time: now}
	var buf [3 * binary.MaxVarintLen64]byte
	record := logfile.AppendArrivalTime(buf[:0], previous, next)
	// Arrival times for many short lines would take more space than the lines: they take at most a quarter of the log's space.
	if err := appendToFileUpToMaxSize(s.logDirFD, logfile.ArrivalTimesFile(logfile.Name(s.key.FilePrefix(), start.fileIndex)), record, s.limits.MaxFileBytes/4); err != nil {
		next = logfile.ArrivalTime{}
	}
	s.lastArrival, s.lastArrivalFileIndex = next, start.fileIndex
}

var errFileFull = errors.New("file has its maximum size")

// appendToFileUpToMaxSize appends data to a file in the log directory, and makes the file if it does not exist. It closes
// the file again, because an open file per stream would use up the process's descriptors.
func appendToFileUpToMaxSize(logDirFD int, name string, data []byte, maxFileBytes int64) error {
	fd, size, err := collectorwire.OpenLogFile(logDirFD, name, unix.O_WRONLY)
	if errors.Is(err, unix.ENOENT) {
		fd, err = createLogFile(logDirFD, name)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if size+int64(len(data)) > maxFileBytes {
		return errFileFull
	}
	if n, err := unix.Pwrite(fd, data, size); err != nil || n < len(data) {
		return errors.Join(err, unix.EIO)
	}
	return nil
}
