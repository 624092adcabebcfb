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

// SanitizingWriter writes the text of commands to a terminal in the form of SanitizeText, because the text can come
// from agents and tasks. A character or an escape sequence can be split between two calls of Write.
//
// All methods may be called concurrently.
type SanitizingWriter struct {
	file   *os.File
	isJSON bool // the text is JSON

	mu              sync.Mutex
	incompleteInput []byte // start of a character or of an escape sequence that the next Write completes
}

// maxPending is the length after which the start of an escape sequence is no longer kept in pending.
const maxPending = 4096

// SanitizeIfTerminal returns a SanitizingWriter for a stream. If the stream is no terminal, it returns the stream
// itself, so that programs get all bytes unchanged.
func SanitizeIfTerminal(stream io.Writer) io.Writer {
	file, ok := stream.(*os.File)
	if !ok || !IsTerminal(file) {
		return stream
	}
	return &SanitizingWriter{file: file}
}

// EscapeJSONIfTerminal returns a writer for JSON to the same stream. On a terminal it writes invisible characters, and
// those that a SanitizingWriter changes or removes, as escape sequences of JSON, so that the JSON value stays the same.
func EscapeJSONIfTerminal(stream io.Writer) io.Writer {
	w, ok := stream.(*SanitizingWriter)
	if !ok {
		return stream
	}
	return &SanitizingWriter{file: w.file, isJSON: true}
}

// UnsanitizedStream returns the file of a SanitizingWriter, for a program that controls the terminal itself. It returns
// any other stream unchanged.
func UnsanitizedStream(stream io.Writer) io.Writer {
	if w, ok := stream.(*SanitizingWriter); ok {
		return w.file
	}
	return stream
}

// Write writes all complete characters and sequences, and keeps an incomplete one for the next call.
func (w *SanitizingWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.incompleteInput, p...)
	var out, rest []byte
	if w.isJSON {
		out, rest = escapeUnsafeRunesInJSON(text)
	} else {
		out, rest = sanitizeChunk(text, true, len(text) > len(p)+maxPending)
	}
	w.incompleteInput = slices.Clone(rest)
	if len(out) == 0 {
		return len(p), nil
	}
	if _, err := w.file.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escapeUnsafeRunesInJSON replaces unsafe characters in JSON, which are all within strings, by escape sequences. rest
// is the start of an incomplete character at the end.
func escapeUnsafeRunesInJSON(text []byte) (out, rest []byte) {
	for len(text) > 0 {
		if !utf8.FullRune(text) {
			return out, text
		}
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '\n', r == '\t': // encoding/json writes these only between values, where JSON permits no escape sequence
			out = append(out, byte(r))
		case r == '\r': // also between values
			out = append(out, ' ')
		case isUnsafeRune(r), unicode.Is(unicode.C, r):
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
