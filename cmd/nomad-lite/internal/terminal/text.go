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

// SanitizeText removes the characters and sequences from a text that would move the cursor, change the
// terminal, reorder the text that follows, or be invisible. Of control characters and sequences it keeps only
// tabs, newlines and, if keepColours is set, colours. A carriage return inside of a line becomes a newline, a separator
// of lines a space, and an invalid byte U+FFFD.
func SanitizeText(text []byte, keepColours bool) []byte {
	out, _ := sanitizeChunk(text, keepColours, true)
	return out
}

// sanitizeChunk does the same as SanitizeText for a part of a text. If atEnd is false and the part ends within a
// character or a sequence, it returns that start in rest, because more text can complete it.
func sanitizeChunk(text []byte, keepColours, atEnd bool) (out, rest []byte) {
	out = make([]byte, 0, len(text))
	coloured := false
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		complete := r != utf8.RuneError || utf8.FullRune(text[i:])
		if r == '\x1b' {
			size, complete = scanEscapeSequence(text[i:])
		}
		switch {
		case !atEnd && (!complete || r == '\r' && i+1 == len(text)):
			rest, text = text[i:], text[:i]
		case r == '\x1b':
			if keepColours && isColourSequence(text[i:i+size]) {
				out = append(out, text[i:i+size]...)
				coloured = size > 3 && string(text[i:i+size]) != ColourReset
			}
		case r == '\r' && i+1 < len(text) && text[i+1] != '\n':
			out = append(out, '\n')
		case r == '\n' && coloured:
			out, coloured = append(out, ColourReset+"\n"...), false
		case r == '\n', r == '\t':
			out = append(out, byte(r))
		case unicode.In(r, unicode.Zl, unicode.Zp):
			out = append(out, ' ')
		case !isUnsafeRune(r):
			out = utf8.AppendRune(out, r)
		}
		i += size
	}
	if coloured {
		out = append(out, ColourReset...)
	}
	return out, rest
}

// isUnsafeRune reports whether a character can control a terminal, or is invisible but changes other text.
func isUnsafeRune(r rune) bool {
	switch {
	case r < 0x7f:
		return r < ' '
	case r == '\u200c', r == '\u200d', unicode.Is(unicode.Prepended_Concatenation_Mark, r):
		return false // they join other characters, in words and in emoji, or are visible
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// isColourSequence reports whether an escape sequence only sets the colours and attributes of text. A sequence that
// ends in m and has other parameters than numbers changes the keyboard.
func isColourSequence(sequence []byte) bool {
	if len(sequence) < 3 || sequence[1] != '[' || sequence[len(sequence)-1] != 'm' {
		return false
	}
	for _, c := range sequence[2 : len(sequence)-1] {
		if (c < '0' || c > '9') && c != ';' && c != ':' {
			return false
		}
	}
	return true
}

// EscapeSequenceLength returns the length of the escape sequence at the start of text.
func EscapeSequenceLength(text []byte) int {
	size, _ := scanEscapeSequence(text)
	return size
}

// scanEscapeSequence returns the length of the escape sequence at the start of text, and whether the text contains its
// end.
func scanEscapeSequence(text []byte) (size int, complete bool) {
	if len(text) < 2 {
		return len(text), false
	}
	ends := func(c byte) bool { return c >= 0x40 && c <= 0x7e }
	switch text[1] {
	case '[': // a control sequence, which ends with its final byte
	case ']', 'P', 'X', '^', '_': // a control string, which ends with BEL or ESC \
		ends = func(c byte) bool { return c == '\a' || c == '\\' }
	default:
		return 2, true
	}
	for i, c := range text[2:] {
		switch {
		case ends(c):
			return i + 3, true
		case c == '\n' || c == '\r': // a line end interrupts the sequence
			return i + 2, true
		}
	}
	return len(text), false
}

// FirstLine returns the first line of a text.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
