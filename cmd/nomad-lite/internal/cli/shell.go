package cli

import "strings"

// ShellQuote quotes a text as one word of a shell.
func ShellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// ShellWord returns a text as one word of a shell. It quotes the text only if that is necessary.
func ShellWord(text string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_=./:,@%+", r)
	}
	if text == "" || strings.ContainsFunc(text, special) {
		return ShellQuote(text)
	}
	return text
}
