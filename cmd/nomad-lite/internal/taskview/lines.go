package taskview

import "bytes"

// maxLineSize is the number of bytes after which an incomplete line is shown.
const maxLineSize = 64 << 10

// LineBuffer splits a stream into whole lines.
type LineBuffer struct{ partialLine []byte }

// AddData appends data to the stream. It calls show with the complete lines, and buffers the incomplete last line.
func (b *LineBuffer) AddData(data []byte, show func([]byte)) {
	if first := bytes.IndexByte(data, '\n') + 1; first > 0 && len(b.partialLine) > 0 {
		b.partialLine = append(b.partialLine, data[:first]...)
		b.Flush(show)
		data = data[first:]
	}
	if end := bytes.LastIndexByte(data, '\n') + 1; end > 0 {
		show(data[:end])
		data = data[end:]
	}
	if b.partialLine = append(b.partialLine, data...); len(b.partialLine) >= maxLineSize {
		b.Flush(show)
	}
}

// Flush calls show with the incomplete line that is buffered, if there is one.
func (b *LineBuffer) Flush(show func([]byte)) {
	if len(b.partialLine) > 0 {
		show(b.partialLine)
		b.partialLine = b.partialLine[:0]
	}
}
