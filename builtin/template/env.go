package template

import (
	"cmp"
	"strings"

	"github.com/hashicorp/go-envparse"
)

// parseEnv reads the lines of a rendered file as Nomad does, and returns the environment variables. path is the path of the file in
// an error, which has no values.
func parseEnv(text, path string) (map[string]string, error) {
	env, err := envparse.Parse(strings.NewReader(text))
	if err != nil {
		return nil, permanentErrorf("Template failed to read environment variables: error parsing env template %q: %w", path, err)
	}
	return env, nil
}

// EnvLoss is a line of an env file whose variable gets less than the text after the equals sign.
type EnvLoss struct {
	Line           int // counted from 1
	Name           string
	Written, Value string // the text in the file, and the value that the task gets
}

// EnvLosses returns the lines of an env file that lose characters: quotes in the middle of a value, or a comment without a blank before
// it. A value in one pair of quotes loses nothing. EnvLosses skips lines with template actions, because their text is unknown.
func EnvLosses(text string) []EnvLoss {
	var list []EnvLoss
	for i, line := range strings.Split(text, "\n") {
		env, err := envparse.Parse(strings.NewReader(line))
		if err != nil || len(env) != 1 || strings.Contains(line, "{{") {
			continue
		}
		_, written, _ := strings.Cut(line, "=")
		written = strings.TrimSpace(written)
		for name, value := range env {
			if value != written && !isQuotedValue(written) && !isValueBeforeComment(written, value) {
				list = append(list, EnvLoss{Line: i + 1, Name: name, Written: written, Value: value})
			}
		}
	}
	return list
}

// isQuotedValue reports whether the text is one pair of quotes with its content, and perhaps a comment after it.
func isQuotedValue(written string) bool {
	if written == "" || written[0] != '"' && written[0] != '\'' {
		return false
	}
	quote := written[0]
	for i := 1; i < len(written); i++ {
		switch {
		case written[i] == '\\' && quote == '"':
			i++
		case written[i] == quote:
			rest := strings.TrimLeft(written[i+1:], " \t")
			return rest == "" || rest[0] == '#' && len(rest) < len(written[i+1:])
		}
	}
	return false
}

// isValueBeforeComment reports whether the text is an unquoted value, blanks and a comment.
func isValueBeforeComment(written, value string) bool {
	rest, ok := strings.CutPrefix(written, value)
	comment := strings.TrimLeft(rest, " \t")
	return ok && strings.HasPrefix(comment, "#") && (value == "" || len(comment) < len(rest))
}

// EnvNames returns the names of the variables that a template with env = true can set. isComplete is false if an action of the
// template can write a name: the template can then set other variables, too.
func EnvNames(text, leftDelim, rightDelim string) (names []string, isComplete bool) {
	const written = "\x00" // stands for the text that an action writes
	left, right := cmp.Or(leftDelim, "{{"), cmp.Or(rightDelim, "}}")
	var lines strings.Builder
	for {
		before, rest, isAction := strings.Cut(text, left)
		lines.WriteString(before)
		if !isAction {
			break
		}
		action, after, isClosed := strings.Cut(rest, right)
		if !isClosed {
			return nil, false
		}
		if !isSilentAction(action) {
			lines.WriteString(written)
		}
		text = after
	}
	isComplete = true
	for line := range strings.Lines(lines.String()) {
		line = strings.TrimSpace(line)
		name, _, hasValue := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.Contains(name, written):
			isComplete = false
		case hasValue:
			names = append(names, strings.TrimSpace(strings.TrimPrefix(name, "export ")))
		}
	}
	return names, isComplete
}

// isSilentAction reports whether an action writes nothing: a comment, an assignment, or a part of a control structure.
func isSilentAction(action string) bool {
	action = strings.TrimSpace(strings.TrimPrefix(action, "-"))
	word, rest, _ := strings.Cut(action, " ")
	switch strings.TrimSuffix(word, "-") {
	case "if", "else", "end", "range", "with", "break", "continue":
		return true
	}
	rest = strings.TrimSpace(rest)
	return strings.HasPrefix(action, "/*") || strings.HasPrefix(word, "$") && (strings.HasPrefix(rest, ":=") || strings.HasPrefix(rest, "= "))
}
