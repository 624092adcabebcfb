package systemd

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// splitWords splits a value at spaces, with the quotes and escapes of systemd. A word whose quotes do not start at its first
// character keeps them.
func splitWords(text string) ([]string, error) {
	words, _, err := splitWordsAndSeparators(text)
	return words, err
}

// splitWordsAndSeparators is splitWords, and returns the indexes of the words ";" without quotes and escapes, which separate commands.
func splitWordsAndSeparators(text string) (words []string, separators map[int]bool, err error) {
	separators = map[int]bool{}
	for {
		text = strings.TrimLeft(text, " \t\n")
		if text == "" {
			return words, separators, nil
		}
		separators[len(words)] = text[0] == ';' && (len(text) == 1 || strings.ContainsRune(" \t\n", rune(text[1])))
		var word strings.Builder
		quote := byte(0)
		if text[0] == '"' || text[0] == '\'' {
			quote = text[0]
			text = text[1:]
		}
		closed := quote == 0
		for text != "" {
			c := text[0]
			if quote == 0 && (c == ' ' || c == '\t' || c == '\n') {
				break
			}
			if c == quote && quote != 0 {
				quote, closed = 0, true
				text = text[1:]
				continue
			}
			if quote == 0 && (c == '"' || c == '\'') && strings.HasSuffix(word.String(), "=") {
				// As of NAME="a b": systemd removes quotes inside of words too.
				quote, closed = c, false
				text = text[1:]
				continue
			}
			if c == '\\' {
				unescaped, rest, err := unescape(text)
				if err != nil {
					return nil, nil, err
				}
				word.WriteString(unescaped)
				text = rest
				continue
			}
			word.WriteByte(c)
			text = text[1:]
		}
		if !closed {
			return nil, nil, fmt.Errorf("a quote is not closed after %q", word.String())
		}
		words = append(words, word.String())
	}
}

// unescape returns the character of the escape with which a text starts.
func unescape(text string) (unescaped, rest string, err error) {
	if len(text) < 2 {
		return "", "", fmt.Errorf("a backslash is the last character")
	}
	simple := map[byte]string{'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", '\\': `\`, '"': `"`, '\'': "'", 's': " ", ';': ";"}
	if s, ok := simple[text[1]]; ok {
		return s, text[2:], nil
	}
	digits, base, skip := 0, 16, 2
	switch c := text[1]; {
	case c == 'x':
		digits = 2
	case c == 'u':
		digits = 4
	case c == 'U':
		digits = 8
	case '0' <= c && c <= '7':
		digits, base, skip = 3, 8, 1
	}
	if digits == 0 || len(text) < skip+digits {
		return `\`, text[1:], nil
	}
	n, err := strconv.ParseUint(text[skip:skip+digits], base, 32)
	if err != nil || n == 0 {
		return "", "", fmt.Errorf("the escape %q is invalid", text[:skip+digits])
	}
	if text[1] == 'u' || text[1] == 'U' {
		if !utf8.ValidRune(rune(n)) {
			return "", "", fmt.Errorf("the escape %q is invalid", text[:skip+digits])
		}
		return string(rune(n)), text[skip+digits:], nil
	}
	return string([]byte{byte(n)}), text[skip+digits:], nil
}

// command is one command line of a unit.
type command struct {
	words         []string
	arg0          string // of the prefix @
	ignoreFailure bool   // the prefix -
	literal       bool   // the prefix :, variables are not replaced
	privileged    string // the prefixes +, ! and !!
	shell         bool   // the prefix |
}

// parseCommands parses the value of ExecStart and its like: commands are separated by ";".
func parseCommands(text string) ([]command, error) {
	raw, separators, err := splitWordsAndSeparators(text)
	if err != nil {
		return nil, err
	}
	var commands []command
	for start := 0; start < len(raw); {
		end := start
		for end < len(raw) && !separators[end] {
			end++
		}
		if end > start {
			c, err := newCommand(raw[start:end])
			if err != nil {
				return nil, err
			}
			commands = append(commands, c)
		}
		start = end + 1
	}
	return commands, nil
}

func newCommand(words []string) (command, error) {
	c := command{}
	hasArg0 := false
	program := words[0]
prefixes:
	for program != "" {
		switch program[0] {
		case '-':
			c.ignoreFailure = true
		case '@':
			hasArg0 = true
		case ':':
			c.literal = true
		case '|':
			c.shell = true
		case '+', '!':
			c.privileged += program[:1]
		default:
			break prefixes
		}
		program = program[1:]
	}
	if program == "" {
		return c, fmt.Errorf("%q names no program", strings.Join(words, " "))
	}
	c.words = append([]string{program}, words[1:]...)
	if hasArg0 {
		if len(c.words) < 2 {
			return c, fmt.Errorf("%q has no name for the program", strings.Join(words, " "))
		}
		c.arg0 = c.words[1]
		c.words = append(c.words[:1:1], c.words[2:]...)
	}
	return c, nil
}

// expandVariables replaces $NAME and ${NAME} in the arguments of a command, as systemd does: a word $NAME becomes as many words as
// its value has, ${NAME} becomes its value. valueOf returns
// the value of a variable.
func expandVariables(words []string, valueOf func(name string) string) []string {
	var expanded []string
	for i, word := range words {
		name, isName := strings.CutPrefix(word, "$")
		if i > 0 && isName && isVariableName(name) {
			text := valueOf(name)
			values, err := splitWords(text)
			if err != nil {
				values = strings.Fields(text)
			}
			expanded = append(expanded, values...)
			continue
		}
		expanded = append(expanded, expandBraces(word, valueOf))
	}
	return expanded
}

func expandBraces(word string, valueOf func(name string) string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(word, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "{"), "}")
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			word = rest[1:]
		case strings.HasPrefix(rest, "{") && closed && isVariableName(name):
			out.WriteString(valueOf(name))
			word = after
		default:
			out.WriteByte('$')
			word = rest
		}
	}
}

func isVariableName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return name != ""
}

// parseEnvironmentFile parses a file of EnvironmentFile.
func parseEnvironmentFile(text string) (names []string, values map[string]string) {
	values = map[string]string{}
	text = strings.ReplaceAll(text, "\\\n", "")
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, raw, found := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !found || !isVariableName(name) {
			continue // systemd ignores such a line too
		}
		raw = strings.TrimSpace(raw)
		if raw != "" && (raw[0] == '"' || raw[0] == '\'') {
			for closingQuote(raw) < 0 && text != "" {
				var next string
				next, text, _ = strings.Cut(text, "\n")
				raw += "\n" + next
			}
		}
		if _, ok := values[name]; !ok {
			names = append(names, name)
		}
		values[name] = unquote(raw)
	}
	return names, values
}

// closingQuote returns the index of the quote that closes the first one, or -1.
func closingQuote(text string) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && text[0] == '"':
			i++
		case text[i] == text[0]:
			return i
		}
	}
	return -1
}

// unquote removes the quotes and backslashes of a value.
func unquote(text string) string {
	var out strings.Builder
	quote := byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == '\'' && c != '\'':
			out.WriteByte(c)
		case c == quote && quote != 0:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == '\\' && i+1 < len(text):
			i++
			if quote == '"' && !strings.ContainsRune("\"\\`$", rune(text[i])) {
				out.WriteByte('\\')
			}
			out.WriteByte(text[i])
		default:
			out.WriteByte(c)
		}
	}
	return strings.TrimSpace(out.String())
}
