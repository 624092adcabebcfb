package logfile

import (
	"bytes"
	"encoding/binary"
	"sort"
	"time"
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

// AppendArrivalTime appends a record to a file's content. The previous record of the process has the zero Time if there is none.
func AppendArrivalTime(b []byte, previous, next ArrivalTime) []byte {
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
