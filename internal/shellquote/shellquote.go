package shellquote

import "strings"

// Quote returns text in single quotes, so that a POSIX shell reads it as one word.
func Quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// QuoteIfNeeded does the same as Quote, but returns a text without special characters unchanged.
func QuoteIfNeeded(text string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_=./:,@%+", r)
	}
	if text == "" || strings.ContainsFunc(text, special) {
		return Quote(text)
	}
	return text
}
