package terminal

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// RuneWidth returns the number of columns of a character: 0 for a mark that is drawn over the previous
// character and for an invisible character, 2 for a wide character such as an ideograph, else 1.
func RuneWidth(r rune) int {
	if r < 0x300 {
		return 1 // neither wide nor combining; callers have removed control characters
	}
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// DisplayWidth returns the number of terminal columns of a line, which can contain colours.
func DisplayWidth(line string) int {
	columns := 0
	for _, r := range string(SanitizeText([]byte(line), false)) {
		columns += RuneWidth(r)
	}
	return columns
}

// TruncateToWidth returns the longest start of a text that fits into columns. The text must not contain colours.
func TruncateToWidth(text string, columns int) string {
	for i, r := range text {
		if columns -= RuneWidth(r); columns < 0 {
			return text[:i]
		}
	}
	return text
}

// maxMarks is the number of combining marks that SanitizeToOneLine keeps after a character. Natural text has fewer;
// many marks on one character cover the lines above.
const maxMarks = 4

// SanitizeAndTrimLine returns the result of SanitizeToOneLine without surrounding spaces.
func SanitizeAndTrimLine(text string) string { return strings.TrimSpace(SanitizeToOneLine(text)) }

// SanitizeToOneLine returns a text as one line without the characters and sequences that would move the cursor,
// change the terminal or reorder the text that follows. Line ends and tabs become spaces.
func SanitizeToOneLine(text string) string {
	var b strings.Builder
	marks := 0
	for _, r := range string(SanitizeText([]byte(text), false)) {
		if r == '\n' || r == '\t' {
			r = ' '
		}
		if RuneWidth(r) > 0 {
			marks = 0
		} else if marks++; marks > maxMarks {
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
