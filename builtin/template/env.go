package template

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// parseEnv reads lines of the form NAME=value. It skips empty lines, lines that
// start with #, and the word export. A value in double quotes has escapes, a
// value in single quotes has none. After a quoted value, and after a blank in a
// plain value, # starts a comment. Errors do not contain values, which may be
// secret.
func parseEnv(text string) (map[string]string, error) {
	env := map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name = strings.TrimSpace(name)
		if !ok {
			return nil, fmt.Errorf("line %d: no = in it", i+1)
		}
		if !isValidEnvName(name) {
			return nil, fmt.Errorf("line %d: %q is no name of a variable", i+1, name)
		}
		value, err := parseEnvValue(strings.TrimSpace(rest))
		if err != nil {
			return nil, fmt.Errorf("line %d: the value of %s: %w", i+1, name, err)
		}
		env[name] = value
	}
	return env, nil
}

func isValidEnvName(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '.' && c != '-') {
			return false
		}
	}
	return name != ""
}

func parseEnvValue(text string) (string, error) {
	if strings.ContainsRune(text, 0) {
		return "", errors.New("there is a NUL byte in it")
	}
	if text == "" || text[0] != '"' && text[0] != '\'' {
		if i := envCommentStart(text); i >= 0 {
			text = text[:i]
		}
		return strings.TrimSpace(text), nil
	}
	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == quote:
			if rest := strings.TrimSpace(text[i+1:]); rest != "" && rest[0] != '#' {
				return "", errors.New("there is something behind the closing quote")
			}
			return b.String(), nil
		case c == '\\' && quote == '"' && i+1 < len(text):
			if r, n := parseUnicodeEscape(text[i:]); n > 0 {
				b.WriteRune(r)
				i += n - 1
				continue
			}
			i++
			b.WriteString(unescapeEnvChar(text[i]))
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New(`the closing quote is missing: a line end inside is written \n`)
}

// unescapeEnvChar returns the text for a backslash and the character c. For an unknown escape
// sequence this is the sequence itself.
func unescapeEnvChar(c byte) string {
	switch c {
	case 'b':
		return "\b"
	case 'f':
		return "\f"
	case 'n':
		return "\n"
	case 'r':
		return "\r"
	case 't':
		return "\t"
	case '"', '\\', '\'', '$':
		return string(c)
	}
	return `\` + string(c)
}

// parseUnicodeEscape parses \u00e9, or a surrogate pair of two such escapes as in
// JSON, and returns the character and the length of the escape.
func parseUnicodeEscape(text string) (r rune, length int) {
	half := func(text string) rune {
		if !strings.HasPrefix(text, `\u`) || len(text) < 6 {
			return -1
		}
		n, err := strconv.ParseUint(text[2:6], 16, 16)
		if err != nil || n == 0 {
			return -1
		}
		return rune(n)
	}
	r = half(text)
	switch {
	case r < 0:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 6
	}
	if r = utf16.DecodeRune(r, half(text[6:])); r == unicode.ReplacementChar {
		return r, 6
	}
	return r, 12
}

// envCommentStart returns the position of the comment after an unquoted value, or
// -1.
func envCommentStart(text string) int {
	for i := range len(text) {
		if text[i] == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
			return i
		}
	}
	return -1
}
