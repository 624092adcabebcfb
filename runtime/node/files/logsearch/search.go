package logsearch

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"time"
)

// Request selects lines.
type Request struct {
	// Streams are the streams to read. If lines arrived in the same millisecond, those from earlier streams are first.
	Streams []Stream
	Filter  Filter
	// Backward returns the lines before From, the last line first. Otherwise the lines from From on are returned.
	Backward bool
	From     *Position // nil means all lines
	// ExcludeFrom omits the line at From from a forward search.
	ExcludeFrom bool
	// Follow, in a forward search, is called each time all stored lines were read. It waits for new output, and returns the streams
	// that can have some. A stream that was missing once is not read again. The search ends with its error.
	Follow func(context.Context) ([]Stream, error)
}

// Line is a line in a task's output. Its Text, without the line end, is valid until the function that receives it returns.
type Line struct {
	Position
	Text      []byte
	IsPartial bool // the task has not written the line end
	AfterGap  bool // the stream's output before this line was removed before the search has read it
}

// Progress is how much output a search has read.
type Progress struct {
	ReadBytes, TotalBytes int64
	// IsComplete: all stored lines were read.
	IsComplete bool
}

// maxPageMemory limits the memory for all streams' pages in a search, if no lines are longer than a page.
const (
	maxPageMemory = 8 << 20
	minPageSize   = 4 << 10
	maxPageSize   = 64 << 10
)

// Run passes the lines to onLine, in order, and calls onProgress after each read, and when all stored lines were read. It returns
// the first error from these functions, from the request's Follow, or from ctx. Files that cannot be read end the search with an
// error, removed files do not.
func Run(ctx context.Context, r Request, onLine func(Line) error, onProgress func(Progress) error) error {
	s := &search{Request: r, onLine: onLine, onProgress: onProgress, opened: map[StreamKey]bool{}}
	order := map[StreamKey]int{}
	for i, stream := range r.Streams {
		order[stream.StreamKey] = i
	}
	fromOrder := -1
	if r.From != nil {
		if i, ok := order[r.From.Stream]; ok {
			fromOrder = i
		}
	}
	for i, stream := range r.Streams {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		one, err := s.open(stream, i)
		if err == nil && r.From != nil {
			err = one.startAt(ctx, *r.From, i < fromOrder)
		}
		if err != nil {
			return streamError(stream, err)
		}
		s.totalBytes += one.unreadBytes()
		s.heads = append(s.heads, one)
	}
	for {
		if err := s.merge(ctx); err != nil {
			return err
		}
		if err := s.onProgress(Progress{s.readBytes, s.totalBytes, true}); err != nil || r.Follow == nil {
			return err
		}
		streams, err := r.Follow(ctx)
		if err != nil {
			return err
		}
		if err := s.continueWith(streams); err != nil {
			return err
		}
	}
}

// search is Run's state.
type search struct {
	Request
	onLine                func(Line) error
	onProgress            func(Progress) error
	readBytes, totalBytes int64
	heads                 heads
	ended                 []*source // sources without lines left; empty unless lines are followed
	opened                map[StreamKey]bool
}

// heads has the sources with lines left. It implements heap.Interface: the first source has the next line, or must be read first
// to find it.
type heads []*source

func (h heads) Len() int { return len(h) }

func (h heads) Less(i, j int) bool {
	x, y := h[i], h[j]
	xHasLine, yHasLine := len(x.pageLines) > 0, len(y.pageLines) > 0
	order := cmp.Compare(x.milliseconds(), y.milliseconds())
	if order == 0 && xHasLine != yHasLine {
		return yHasLine // what x has not read can be before y's line
	}
	order = cmp.Or(order, cmp.Compare(x.order, y.order))
	if x.isBackward {
		return order > 0
	}
	return order < 0
}

func (h heads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)   { *h = append(*h, x.(*source)) }

func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func streamError(s Stream, err error) error {
	return fmt.Errorf("read %s of task %q of allocation %s: %w", s.Output, s.Task, s.AllocID, err)
}

func (s *search) open(stream Stream, order int) (*source, error) {
	f := files{stream: stream}
	if err := f.list(); err != nil {
		return nil, err
	}
	s.opened[stream.StreamKey] = true
	pageSize := max(minPageSize, min(maxPageSize, maxPageMemory/int64(max(1, len(s.Streams)))))
	one := newSource(f, s.Filter, s.Backward, pageSize, order)
	one.keepsPartialLine = s.Follow != nil
	return one, nil
}

// merge passes all sources' lines to onLine.
func (s *search) merge(ctx context.Context) error {
	heap.Init(&s.heads)
	for len(s.heads) > 0 {
		first := s.heads[0]
		if len(first.pageLines) > 0 {
			if err := s.emit(first); err != nil {
				return err
			}
			heap.Fix(&s.heads, 0)
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		before := first.readBytes
		more, err := first.readPage()
		if err != nil {
			return streamError(first.stream, err)
		}
		s.readBytes += first.readBytes - before
		if err := s.onProgress(Progress{min(s.readBytes, s.totalBytes), s.totalBytes, false}); err != nil {
			return err
		}
		if more {
			heap.Fix(&s.heads, 0)
			continue
		}
		heap.Pop(&s.heads)
		first.page, first.pageText, first.times = nil, nil, nil
		if s.Follow != nil {
			s.ended = append(s.ended, first)
		}
	}
	return nil
}

// emit passes a source's next line to onLine.
func (s *search) emit(from *source) error {
	next := from.pageLines[0]
	from.pageLines = from.pageLines[1:]
	line := Line{
		Position: Position{
			Time: time.UnixMilli(next.milliseconds), Stream: from.stream.StreamKey,
			FileIndex: from.timesFileIndex, Offset: next.offset,
		},
		Text: from.pageText[next.start:next.end], IsPartial: next.isPartial, AfterGap: from.hasGap,
	}
	from.hasGap = false
	if s.ExcludeFrom && s.From != nil && line.Stream == s.From.Stream && line.FileIndex == s.From.FileIndex && line.Offset == s.From.Offset {
		return nil
	}
	return s.onLine(line)
}

// continueWith prepares the streams' sources for output written since they ended, and drops other sources.
func (s *search) continueWith(streams []Stream) error {
	ended := map[StreamKey]*source{}
	for _, one := range s.ended {
		ended[one.stream.StreamKey] = one
	}
	s.ended, s.heads = nil, nil
	s.readBytes, s.totalBytes = 0, 0
	for _, stream := range streams {
		one := ended[stream.StreamKey]
		var err error
		switch {
		case one != nil:
			err = one.continueForward()
		case s.opened[stream.StreamKey]:
			continue
		default:
			one, err = s.open(stream, len(s.opened))
		}
		if err != nil {
			return streamError(stream, err)
		}
		s.totalBytes += one.unreadBytes()
		s.heads = append(s.heads, one)
	}
	return nil
}
