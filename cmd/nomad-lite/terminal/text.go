package terminal

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// These sequences change the colour of the text that follows.
const (
	ColourBold   = "\x1b[1m"
	ColourDim    = "\x1b[2m"
	ColourRed    = "\x1b[31m"
	ColourGreen  = "\x1b[32m"
	ColourYellow = "\x1b[33m"
	ColourReset  = "\x1b[0m"
)

// SanitizeText removes the characters and sequences from a text that would move the cursor or change
// the terminal. Of control characters and sequences it keeps only tabs, newlines and, if colours is
// set, colours. A carriage return inside of a line becomes a newline.
func SanitizeText(text []byte, colours bool) []byte {
	out := make([]byte, 0, len(text))
	coloured := false
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == '\x1b':
			size = EscapeSequenceLength(text[i:])
			if colours && size > 2 && text[i+1] == '[' && text[i+size-1] == 'm' {
				out = append(out, text[i:i+size]...)
				coloured = size > 3 && string(text[i:i+size]) != ColourReset
			}
		case r == '\r' && i+1 < len(text) && text[i+1] != '\n':
			out = append(out, '\n')
		case r == '\n' && coloured:
			out, coloured = append(out, ColourReset+"\n"...), false
		case r == '\n', r == '\t', !unicode.IsControl(r):
			out = append(out, text[i:i+size]...)
		}
		i += size
	}
	if coloured {
		out = append(out, ColourReset...)
	}
	return out
}

// EscapeSequenceLength returns the length of the escape sequence at the start of text.
func EscapeSequenceLength(text []byte) int {
	if len(text) < 2 {
		return len(text)
	}
	ends := func(c byte) bool { return c >= 0x40 && c <= 0x7e }
	switch text[1] {
	case '[': // a control sequence, which ends with its final byte
	case ']', 'P', 'X', '^', '_': // a control string, which ends with BEL or ESC \
		ends = func(c byte) bool { return c == '\a' || c == '\\' }
	default:
		return 2
	}
	for i, c := range text[2:] {
		switch {
		case ends(c):
			return i + 3
		case c == '\n' || c == '\r': // the sequence is cut off
			return i + 2
		}
	}
	return len(text)
}

// FirstLine returns the first line of a text.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
