package cli

import "strings"

// ShellQuote quotes a text as one word of a shell.
func ShellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
