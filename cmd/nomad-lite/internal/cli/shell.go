package cli

import "strings"

// ShellQuote returns text in single quotes, so that a POSIX shell reads it as one word.
func ShellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// ShellQuoteIfNeeded does the same as ShellQuote, but returns a text without special characters unchanged.
func ShellQuoteIfNeeded(text string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_=./:,@%+", r)
	}
	if text == "" || strings.ContainsFunc(text, special) {
		return ShellQuote(text)
	}
	return text
}
