package taskview

import "bytes"

// maxLineSize is the number of bytes after which an incomplete line is shown.
const maxLineSize = 64 << 10

// LineBuffer buffers a stream, and passes it on in whole lines.
type LineBuffer struct{ partialLine []byte }

// Add appends data to the stream. It calls show with the lines that are complete, and buffers the
// rest.
func (b *LineBuffer) Add(data []byte, show func([]byte)) {
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

// Flush calls show with the buffered part of a line.
func (b *LineBuffer) Flush(show func([]byte)) {
	if len(b.partialLine) > 0 {
		show(b.partialLine)
		b.partialLine = b.partialLine[:0]
	}
}
