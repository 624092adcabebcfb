package taskview

import "bytes"

// maxLine is the number of bytes after which an unterminated line is shown.
const maxLine = 64 << 10

// LineBuffer splits a stream after whole lines.
type LineBuffer struct{ rest []byte }

// Add passes the whole lines of the stream so far to show, and keeps the rest.
func (b *LineBuffer) Add(data []byte, show func([]byte)) {
	if first := bytes.IndexByte(data, '\n') + 1; first > 0 && len(b.rest) > 0 {
		b.rest = append(b.rest, data[:first]...)
		b.Flush(show)
		data = data[first:]
	}
	if end := bytes.LastIndexByte(data, '\n') + 1; end > 0 {
		show(data[:end])
		data = data[end:]
	}
	if b.rest = append(b.rest, data...); len(b.rest) >= maxLine {
		b.Flush(show)
	}
}

// Flush passes the rest to show.
func (b *LineBuffer) Flush(show func([]byte)) {
	if len(b.rest) > 0 {
		show(b.rest)
		b.rest = b.rest[:0]
	}
}
