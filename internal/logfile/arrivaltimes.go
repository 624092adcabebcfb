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

// maxRecordBytes is the maximum length of a record without its zero byte.
const maxRecordBytes = 2 * binary.MaxVarintLen64

// ArrivalTimeDecoder decodes the records of a file of arrival times. The zero value decodes from the start of a file; a copy
// decodes later from the same record on.
type ArrivalTimeDecoder struct {
	milliseconds, offset int64
	isSynced             bool // the previous record was not damaged
}

// Next decodes the record at the start of b, which is a part of the file. n is the number of bytes that it has read. ok is false
// if these bytes have no record because they are damaged. An n of 0 means that b is empty or ends within the record, so that Next
// needs more of the file.
func (d *ArrivalTimeDecoder) Next(b []byte) (at ArrivalTime, n int, ok bool) {
	if !d.isSynced {
		if n = bytes.IndexByte(b, 0); n != 0 {
			if n < 0 {
				n = len(b)
			}
			return ArrivalTime{}, n, false
		}
	}
	record, previous, absolute := b, *d, 0
	if len(b) > 0 && b[0] == 0 {
		record, previous, absolute = b[1:], ArrivalTimeDecoder{offset: -1}, 1
	}
	record = record[:min(len(record), maxRecordBytes)]
	end := bytes.IndexByte(record, 0)
	if end >= 0 {
		record = record[:end]
	}
	elapsed, elapsedBytes := binary.Uvarint(record)
	moved, movedBytes := binary.Uvarint(record[max(elapsedBytes, 0):])
	isIncomplete := elapsedBytes == 0 || elapsedBytes > 0 && movedBytes == 0
	if isIncomplete && end < 0 {
		return ArrivalTime{}, 0, false
	}
	next := ArrivalTimeDecoder{previous.milliseconds + int64(elapsed), previous.offset + int64(moved), true}
	if isIncomplete || elapsedBytes < 0 || movedBytes < 0 || max(elapsed, moved, uint64(next.milliseconds), uint64(next.offset)) >= 1<<53 {
		d.isSynced = false
		if end < 0 {
			end = 1 // the next call skips the rest
		}
		return ArrivalTime{}, absolute + end, false
	}
	*d = next
	return ArrivalTime{Offset: d.offset, Time: time.UnixMilli(d.milliseconds)}, absolute + elapsedBytes + movedBytes, true
}

// ParseArrivalTimes parses the content of a file of arrival times. It skips damaged records. The offsets of
// the result increase.
func ParseArrivalTimes(content []byte) []ArrivalTime {
	var times []ArrivalTime
	var d ArrivalTimeDecoder
	for {
		at, n, ok := d.Next(content)
		if n == 0 {
			return times
		}
		content = content[n:]
		if !ok {
			continue
		}
		// A lower offset than before means that the log file was truncated.
		i := sort.Search(len(times), func(i int) bool { return times[i].Offset >= at.Offset })
		times = append(times[:i], at)
	}
}
