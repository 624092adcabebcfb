package logs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sort"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ArrivalTime is the time at which output arrived. It applies to the bytes from Offset up to the offset of
// the next ArrivalTime of the file. It is exact to a millisecond.
type ArrivalTime struct {
	Offset int64
	Time   time.Time
}

// ArrivalTimesFile returns the name of the file with the arrival times of a log file. It is hidden, so that
// programs which collect log files by a pattern do not find it.
func ArrivalTimesFile(logFile string) string { return "." + logFile + ".times" }

// FindArrivalTime returns when the byte at an offset arrived. It returns false if no time covers the
// offset.
func FindArrivalTime(times []ArrivalTime, offset int64) (time.Time, bool) {
	i := sort.Search(len(times), func(i int) bool { return times[i].Offset > offset })
	if i == 0 {
		return time.Time{}, false
	}
	return times[i-1].Time, true
}

// A file of arrival times is a sequence of records. A record has two unsigned varints: milliseconds and
// bytes since the previous record. Both are greater than zero, so a record contains no zero byte. A zero byte
// starts a record that does not depend on the previous one: the time since 1970 and the offset plus one.
// The first record of each process is of this kind, and makes the file readable after a partial write.

// appendArrivalTime appends a record. The previous record has the zero Time if there is none.
func appendArrivalTime(b []byte, previous, next ArrivalTime) []byte {
	elapsed, moved := next.Time.UnixMilli()-previous.Time.UnixMilli(), next.Offset-previous.Offset
	if previous.Time.IsZero() || elapsed <= 0 || moved <= 0 {
		b = append(b, 0)
		elapsed, moved = next.Time.UnixMilli(), next.Offset+1
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(max(elapsed, 1))), uint64(max(moved, 1)))
}

// ParseArrivalTimes parses the content of a file of arrival times. It skips damaged records. The offsets of
// the result increase.
func ParseArrivalTimes(content []byte) []ArrivalTime {
	var times []ArrivalTime
	_, content, _ = bytes.Cut(content, []byte{0})
	for part := range bytes.SplitSeq(content, []byte{0}) {
		milliseconds, offset := int64(0), int64(-1)
		for len(part) > 0 {
			elapsed, n := binary.Uvarint(part)
			moved, m := binary.Uvarint(part[max(n, 0):])
			if n <= 0 || m <= 0 || elapsed >= 1<<53 || moved >= 1<<53 {
				break
			}
			part = part[n+m:]
			milliseconds, offset = milliseconds+int64(elapsed), offset+int64(moved)
			// A lower offset than before means that the log file was truncated.
			i := sort.Search(len(times), func(i int) bool { return times[i].Offset >= offset })
			times = append(times[:i], ArrivalTime{Offset: offset, Time: time.UnixMilli(milliseconds)})
		}
	}
	return times
}

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
		previous = ArrivalTime{}
	} else if now.UnixMilli() == previous.Time.UnixMilli() && start.offset > previous.Offset {
		return
	}
	next := ArrivalTime{Offset: start.offset, Time: now}
	var buf [3 * binary.MaxVarintLen64]byte
	record := appendArrivalTime(buf[:0], previous, next)
	// A task can write faster than its log file grows in proportion: arrival times take at most a quarter
	// of the space of the log.
	if err := appendToFile(s.dirFD, ArrivalTimesFile(fileName(s.key.filePrefix(), start.fileIndex)), record, s.limits.MaxFileSize/4); err != nil {
		next = ArrivalTime{}
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

// LogFileIndex returns the number in the name of a log file of a stream. Files of other streams, and other
// files of tasks, have none.
func LogFileIndex(name, task string, stream Stream) (int64, bool) {
	return parseIndex(name, key{Task: task, Stream: stream}.filePrefix())
}

// LogFile returns the name of a log file.
func LogFile(task string, stream Stream, index int64) string {
	return key{Task: task, Stream: stream}.filePrefix() + strconv.FormatInt(index, 10)
}
