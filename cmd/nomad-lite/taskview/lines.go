package taskview

import "bytes"

// maxLine is the number of bytes after which an unterminated line is shown.
const maxLine = 64 << 10

// LineBuffer splits a stream after whole lines.
type LineBuffer struct{ partialLine []byte }

// Add passes the whole lines of the stream so far to show, and keeps the rest.
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
	if b.partialLine = append(b.partialLine, data...); len(b.partialLine) >= maxLine {
		b.Flush(show)
	}
}

// Flush passes the rest to show.
func (b *LineBuffer) Flush(show func([]byte)) {
	if len(b.partialLine) > 0 {
		show(b.partialLine)
		b.partialLine = b.partialLine[:0]
	}
}
