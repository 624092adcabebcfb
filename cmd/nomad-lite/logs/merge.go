package logs

import (
	"container/heap"
	"context"
	"errors"
	"io"
	"slices"
)

// lineSource returns the next line of a sequence of lines at each call, and io.EOF after the last one.
type lineSource func(context.Context) (outputLine, error)

// newSliceLineSource returns a source that returns the given lines.
func newSliceLineSource(lines []outputLine) lineSource {
	return func(context.Context) (outputLine, error) {
		if len(lines) == 0 {
			return outputLine{}, io.EOF
		}
		first := lines[0]
		lines = lines[1:]
		return first, nil
	}
}

// mergeLinesByTime calls emit with the lines of all sources in the order of their times. The lines of one source
// keep their order. Of lines with the same time, the line of the source with the lower index is first.
func mergeLinesByTime(ctx context.Context, sources []lineSource, emit func(outputLine) error) error {
	var heads lineHeap
	for i, source := range sources {
		l, err := source(ctx)
		if errors.Is(err, io.EOF) {
			continue
		}
		if err != nil {
			return err
		}
		heads = append(heads, nextLineOfSource{l, i})
	}
	heap.Init(&heads)
	for len(heads) > 0 {
		first := &heads[0]
		if err := emit(first.line); err != nil {
			return err
		}
		next, err := sources[first.sourceIndex](ctx)
		switch {
		case errors.Is(err, io.EOF):
			heap.Pop(&heads)
		case err != nil:
			return err
		default:
			first.line = next
			heap.Fix(&heads, 0)
		}
	}
	return nil
}

// lastMergedLines merges the lines of all sources by time, and returns the last lineCount of them.
func lastMergedLines(ctx context.Context, sources []lineSource, lineCount int) ([]outputLine, error) {
	var lines []outputLine
	err := mergeLinesByTime(ctx, sources, func(l outputLine) error {
		lines = append(lines, l)
		return nil
	})
	return slices.Clip(lines[max(0, len(lines)-lineCount):]), err
}

// nextLineOfSource is the next line of a source, in mergeLinesByTime.
type nextLineOfSource struct {
	line        outputLine
	sourceIndex int
}

// lineHeap implements heap.Interface. The first element is the line to emit next.
type lineHeap []nextLineOfSource

func (h lineHeap) Len() int { return len(h) }

func (h lineHeap) Less(i, j int) bool {
	if order := h[i].line.sortTime.Compare(h[j].line.sortTime); order != 0 {
		return order < 0
	}
	return h[i].sourceIndex < h[j].sourceIndex
}

func (h lineHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *lineHeap) Push(x any)   { *h = append(*h, x.(nextLineOfSource)) }

func (h *lineHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
