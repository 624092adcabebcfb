package taskview

import "bytes"

// maxLineSize is the number of bytes after which an incomplete line is shown.
const maxLineSize = 64 << 10

// LineBuffer splits a stream into whole lines.
type LineBuffer struct{ partialLine []byte }

// AddData appends data to the stream. It calls onCompleteLines with the complete lines, and buffers the incomplete last
// line.
func (b *LineBuffer) AddData(data []byte, onCompleteLines func([]byte)) {
	if first := bytes.IndexByte(data, '\n') + 1; first > 0 && len(b.partialLine) > 0 {
		b.partialLine = append(b.partialLine, data[:first]...)
		b.Flush(onCompleteLines)
		data = data[first:]
	}
	if end := bytes.LastIndexByte(data, '\n') + 1; end > 0 {
		onCompleteLines(data[:end])
		data = data[end:]
	}
	if b.partialLine = append(b.partialLine, data...); len(b.partialLine) >= maxLineSize {
		b.Flush(onCompleteLines)
	}
}

// Flush calls onIncompleteLine with the incomplete line that is buffered, if there is one.
func (b *LineBuffer) Flush(onIncompleteLine func([]byte)) {
	if len(b.partialLine) > 0 {
		onIncompleteLine(b.partialLine)
		b.partialLine = b.partialLine[:0]
	}
}
