package terminal

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Writer writes the text of commands, which has text of agents and tasks in it, to a terminal, in the form of
// SanitizeText. A character or a sequence can be split between two calls of Write.
//
// All methods may be called concurrently.
type Writer struct {
	file *os.File
	json bool // the text is JSON

	mu      sync.Mutex
	pending []byte // start of a character or of a sequence
}

// maxPending is the length after which the start of a sequence is no longer kept.
const maxPending = 4096

// NewWriter returns a writer for a stream. It returns the stream itself if that is no terminal: programs get the bytes
// as they are.
func NewWriter(stream io.Writer) io.Writer {
	file, ok := stream.(*os.File)
	if !ok || !IsTerminal(file) {
		return stream
	}
	return &Writer{file: file}
}

// JSONWriter returns a writer for JSON to the same stream. On a terminal it writes the characters that a Writer changes
// or removes, and other invisible ones, as escape sequences of JSON, so that the value stays the same.
func JSONWriter(stream io.Writer) io.Writer {
	w, ok := stream.(*Writer)
	if !ok {
		return stream
	}
	return &Writer{file: w.file, json: true}
}

// Raw returns the stream of a Writer, for a program that has the terminal for itself and controls it. It returns other
// streams themselves.
func Raw(stream io.Writer) io.Writer {
	if w, ok := stream.(*Writer); ok {
		return w.file
	}
	return stream
}

// Write writes all complete characters and sequences.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.pending, p...)
	var out, rest []byte
	if w.json {
		out, rest = escapeJSON(text)
	} else {
		out, rest = sanitizeComplete(text, true, len(text) > len(p)+maxPending)
	}
	w.pending = slices.Clone(rest)
	if len(out) == 0 {
		return len(p), nil
	}
	if _, err := w.file.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escapeJSON returns JSON whose unsafe characters, which are inside of its strings, are escape sequences. It returns the
// start of a character at the end, too.
func escapeJSON(text []byte) (out, rest []byte) {
	for len(text) > 0 {
		if !utf8.FullRune(text) {
			return out, text
		}
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '\n', r == '\t': // they are between values, where JSON permits no escape sequence
			out = append(out, byte(r))
		case r == '\r': // so is this one
			out = append(out, ' ')
		case isUnsafe(r), unicode.Is(unicode.C, r):
			if high, low := utf16.EncodeRune(r); low != unicode.ReplacementChar {
				out = fmt.Appendf(out, "\\u%04x\\u%04x", high, low)
			} else {
				out = fmt.Appendf(out, "\\u%04x", r)
			}
		default:
			out = utf8.AppendRune(out, r)
		}
		text = text[size:]
	}
	return out, nil
}
