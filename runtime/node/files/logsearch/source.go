package logsearch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// source reads one stream's lines from a position on, in one direction. It has one page of a file in memory.
type source struct {
	files
	filter     Filter
	isBackward bool
	pageSize   int64
	order      int // if lines have the same time, those from a source with a lower order are first

	// The unread lines are after offset in a file, or before it. at is an index in listed. It is -1 or len(listed) when all lines
	// were read.
	at     int
	offset int64

	page             []byte     // buffer
	pageText         []byte     // the page's lines, in the buffer
	pageLines        []pageLine // the page's lines selected by the filter and not yet emitted, in the order for emit
	times            *timesIndex
	timesFileIndex   int64 // number of the log file for times
	longLineStart    int64 // start of the line before offset, if only pieces fit a page; -1 if unknown
	nextMilliseconds int64 // no unread line has an earlier time, or a later one if the source is backward
	readBytes        int64
	hasGap           bool // output was removed before it was read
	keepsPartialLine bool // the last line is not read while it has no end and its file has changed in the last second
}

// pageLine is a line in a page.
type pageLine struct {
	start, end   int // in pageText, without the line end
	offset       int64
	milliseconds int64
	isPartial    bool
}

// partialLineAge is the time after which a line without an end is read.
const partialLineAge = time.Second

// maxTimeAfterWrite is more than the time between a write to a log file and the arrival time stored for it. So a search for the
// newest lines reads nothing from streams that have ended long before.
const maxTimeAfterWrite = 2 * time.Second

// newSource returns a source that reads all of a stream's lines. start moves its position.
func newSource(f files, filter Filter, isBackward bool, pageSize int64, order int) *source {
	s := &source{files: f, filter: filter, isBackward: isBackward, pageSize: pageSize, order: order, longLineStart: -1, timesFileIndex: -1, hasGap: f.omitsOldFiles && !isBackward}
	if isBackward {
		s.at = len(f.listed) - 1
		if s.at >= 0 {
			newest := f.listed[s.at]
			s.offset = newest.size
			s.nextMilliseconds = newest.modifiedAt.Add(maxTimeAfterWrite).UnixMilli()
		}
	} else {
		s.nextMilliseconds = beforeAllTimes
	}
	return s
}

// startAt moves the position to the line at from: a forward source reads this line first, a backward source the line before it.
func (s *source) startAt(ctx context.Context, from Position, isOfEarlierStream bool) error {
	if from.Stream == s.stream.StreamKey {
		at, ok := slices.BinarySearchFunc(s.listed, from.FileIndex, func(f file, index int64) int { return cmp.Compare(f.index, index) })
		s.at, s.offset = at, 0
		if ok {
			s.offset = min(from.Offset, s.listed[at].size)
		} else if at == len(s.listed) && at > 0 {
			s.at, s.offset = at-1, s.listed[at-1].size
		}
		return nil
	}
	milliseconds := from.Time.UnixMilli()
	if !isOfEarlierStream {
		milliseconds-- // lines with this time are after the position
	}
	var err error
	s.at, s.offset, err = s.positionOfTime(ctx, milliseconds)
	return err
}

// isAtEnd reports whether all lines were read.
func (s *source) isAtEnd() bool {
	return len(s.pageLines) == 0 && (s.at < 0 || s.at >= len(s.listed) || s.isBackward && s.at == 0 && s.offset == 0)
}

// continueForward lists the files again, so that a forward source at its end continues with new ones.
func (s *source) continueForward() error {
	index, offset := int64(-1), int64(0)
	if s.at < len(s.listed) {
		index, offset = s.listed[s.at].index, s.offset
	}
	if err := s.list(); err != nil {
		return err
	}
	at, ok := slices.BinarySearchFunc(s.listed, index, func(f file, index int64) int { return cmp.Compare(f.index, index) })
	s.at, s.offset = at, 0
	if ok && s.listed[at].size >= offset { // a shorter file was truncated
		s.offset = offset
	}
	s.hasGap = s.hasGap || !ok && index >= 0
	s.times = nil
	s.nextMilliseconds = beforeAllTimes
	return nil
}

// unreadBytes returns how much output was not read yet.
func (s *source) unreadBytes() (n int64) {
	for i, f := range s.listed {
		switch {
		case i == s.at && s.isBackward:
			n += s.offset
		case i == s.at:
			n += max(0, f.size-s.offset)
		case (i < s.at) == s.isBackward:
			n += f.size
		}
	}
	return n
}

// readPage reads the next page. The filter may select no lines in it. It returns false if there is no page left.
func (s *source) readPage() (bool, error) {
	for !s.isAtEnd() {
		f := s.listed[s.at]
		isFileRead := s.offset >= f.size
		if s.isBackward {
			isFileRead = s.offset == 0
		}
		if isFileRead {
			if !s.moveToNextFile() {
				return false, nil
			}
			continue
		}
		start, text, err := s.readLines(f)
		if errors.Is(err, errRemoved) {
			s.listed[s.at].size, s.offset, s.hasGap = 0, 0, true
			continue
		}
		if err != nil {
			return false, err
		}
		if len(text) == 0 {
			if s.keepsPartialLine && !s.isBackward && s.at == len(s.listed)-1 && s.offset < s.listed[s.at].size {
				return false, nil // the partial line at the end
			}
			continue // the file was truncated
		}
		return true, s.splitPage(f, start, text)
	}
	return false, nil
}

// moveToNextFile moves to the next file in the source's direction. A forward source stays at the newest file's end, so that it
// can continue when the file has grown.
func (s *source) moveToNextFile() bool {
	s.longLineStart = -1
	if s.isBackward {
		s.at--
		if s.at >= 0 {
			s.offset = s.listed[s.at].size
		}
		return s.at >= 0
	}
	if s.at+1 >= len(s.listed) {
		return false
	}
	s.at, s.offset = s.at+1, 0
	return true
}

// readLines reads complete lines from the position on, and moves the position. text is valid until the next call.
func (s *source) readLines(f file) (start int64, text []byte, err error) {
	if s.isBackward {
		start, text, err = s.readLinesBefore(f)
		s.offset = start
	} else {
		start = s.offset
		text, err = s.readLinesAfter(f)
		s.offset += int64(len(text))
	}
	s.readBytes += int64(len(text))
	return start, text, err
}

// read reads a part of the file into s.page. A shorter result means a shortened file.
func (s *source) read(f file, start, end int64) ([]byte, error) {
	if int64(cap(s.page)) < end-start {
		s.page = make([]byte, end-start)
	}
	n, err := s.readAt(f.index, s.page[:end-start], start)
	return s.page[:n], err
}

func (s *source) readLinesAfter(f file) ([]byte, error) {
	for size := s.pageSize; ; size = maxLineBytes {
		end := min(f.size, s.offset+size)
		text, err := s.read(f, s.offset, end)
		if err != nil {
			return nil, err
		}
		if int64(len(text)) < end-s.offset {
			s.listed[s.at].size = s.offset + int64(len(text))
			end = s.listed[s.at].size
		}
		complete := 0
		for {
			n := lineLength(text[complete:])
			if n == 0 {
				break
			}
			complete += n
		}
		isAtEndOfFile := end == s.listed[s.at].size
		if isAtEndOfFile && complete < len(text) {
			isGrowing := s.at == len(s.listed)-1 && time.Since(f.modifiedAt) < partialLineAge
			if !s.keepsPartialLine || !isGrowing {
				complete = len(text)
			}
		}
		if complete > 0 || isAtEndOfFile || size >= maxLineBytes {
			return text[:complete], nil
		}
	}
}

func (s *source) readLinesBefore(f file) (start int64, text []byte, err error) {
	end := s.offset
	if s.longLineStart < 0 || s.longLineStart >= end {
		s.longLineStart = -1
		for size := s.pageSize; ; size = maxLineBytes + 1 {
			start = max(0, end-size)
			if text, err = s.read(f, start, end); err != nil {
				return 0, nil, err
			}
			if int64(len(text)) < end-start { // the file has become shorter
				return s.endOfShortFile(f, end)
			}
			if start == 0 {
				return 0, text, nil
			}
			if newline := slices.Index(text[:len(text)-1], '\n'); newline >= 0 {
				return start + int64(newline) + 1, text[newline+1:], nil
			}
			if size > maxLineBytes {
				break
			}
		}
		if s.longLineStart, err = s.lineStartBefore(f, end); err != nil {
			return 0, nil, err
		}
	}
	start = s.longLineStart + (end-s.longLineStart-1)/maxLineBytes*maxLineBytes
	text, err = s.read(f, start, end)
	if err == nil && int64(len(text)) < end-start {
		return s.endOfShortFile(f, end)
	}
	return start, text, err
}

// endOfShortFile returns the end of a file that has become shorter than an offset, as a line start after which there are no
// lines.
func (s *source) endOfShortFile(f file, offset int64) (start int64, text []byte, err error) {
	size, err := s.sizeOf(f.index)
	s.longLineStart = -1
	return min(size, max(0, offset-1)), nil, err
}

// splitPage stores a text's lines if the filter selects them. The text starts at an offset in the file.
func (s *source) splitPage(f file, start int64, text []byte) error {
	if s.times == nil || s.timesFileIndex != f.index {
		var err error
		if s.times, err = s.timesIndexOf(f); err != nil {
			return err
		}
		s.timesFileIndex = f.index
	}
	records := []arrivalRecord{{0, f.modifiedAt.UnixMilli()}}
	if !s.times.isEmpty() {
		err := s.withTimes(f.index, func(read timesReader) error {
			found, err := s.times.times(start, start+int64(len(text)), read)
			if len(found) > 0 {
				records = found
			}
			return err
		})
		if ignoreRemoved(err) != nil {
			return err
		}
	}
	timeOf := func(offset int64) int64 { // offsets in consecutive calls increase
		for len(records) > 1 && records[1].offset <= offset {
			records = records[1:]
		}
		return records[0].milliseconds
	}
	first := timeOf(start)
	s.pageLines = s.pageLines[:0]
	if s.isBackward {
		s.nextMilliseconds = first
	} else {
		s.nextMilliseconds = records[len(records)-1].milliseconds
	}
	if !s.filter.canMatchIn(text) {
		return nil
	}
	for at := 0; at < len(text); {
		end := at + lineLength(text[at:])
		isPartial := end == at
		if isPartial {
			end = len(text)
		}
		line := pageLine{start: at, end: end, offset: start + int64(at), isPartial: isPartial}
		if text[end-1] == '\n' {
			line.end--
		}
		if s.filter.matches(text[line.start:line.end]) {
			line.milliseconds = timeOf(line.offset)
			s.pageLines = append(s.pageLines, line)
		}
		at = end
	}
	s.pageText = text
	if s.isBackward {
		slices.Reverse(s.pageLines)
	}
	return nil
}

// milliseconds returns the next line's time, or a time not preceded by any later line in the source's direction.
func (s *source) milliseconds() int64 {
	if len(s.pageLines) > 0 {
		return s.pageLines[0].milliseconds
	}
	return s.nextMilliseconds
}
