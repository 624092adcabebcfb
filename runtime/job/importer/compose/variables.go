package compose

import (
	"errors"
	"fmt"
	"strings"
)

// errUnclosedReference is the error for ${ without }.
var errUnclosedReference = errors.New("a reference ${ has no closing brace; write $$ for a dollar sign")

// expander replaces the variables in texts.
type expander struct {
	lookup  func(name string) (string, bool)
	missing func(name string)   // called for a variable without a value and a default
	kept    func(dollar string) // called with a text whose dollar sign starts no variable; may be nil
}

// expand replaces $NAME and ${NAME} with the operators of compose in a text, and $$ by $. Another dollar sign stays.
func (e *expander) expand(text string) (string, error) { return e.expandWithDepth(text, 0) }

func (e *expander) expandWithDepth(text string, depth int) (string, error) {
	if depth > maxDepth {
		return "", errors.New("references are nested too deep")
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "{"):
			end := closingBrace(rest)
			if end < 0 {
				return "", errUnclosedReference
			}
			v, err := e.expandReference(rest[1:end], depth)
			if err != nil {
				return "", err
			}
			out.WriteString(v)
			text = rest[end+1:]
		default:
			name := leadingName(rest)
			if name == "" {
				if e.kept != nil {
					e.kept(shorten("$" + rest))
				}
				out.WriteByte('$')
				text = rest
				continue
			}
			v, ok := e.lookup(name)
			if !ok {
				e.missing(name)
			}
			out.WriteString(v)
			text = rest[len(name):]
		}
	}
}

func shorten(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// closingBrace returns the index of the brace that closes the first one of text, or -1.
func closingBrace(text string) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], "$$"):
			i++
		case text[i] == '{' && (i == 0 || text[i-1] == '$'):
			depth++
		case text[i] == '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// expandReference returns the value for what is between the braces of a reference.
func (e *expander) expandReference(inner string, depth int) (string, error) {
	name := leadingName(inner)
	if name == "" {
		return "", fmt.Errorf("${%s} has no name of a variable; write $$ for a dollar sign", shorten(inner))
	}
	operator, operand := inner[len(name):], ""
	for _, known := range []string{":-", ":?", ":+", "-", "?", "+"} {
		if rest, found := strings.CutPrefix(operator, known); found {
			operator, operand = known, rest
			break
		}
	}
	v, isSet := e.lookup(name)
	counts := isSet
	if strings.HasPrefix(operator, ":") {
		counts = v != ""
	}
	switch strings.TrimPrefix(operator, ":") {
	case "":
		if operator == ":" {
			break
		}
		if !isSet {
			e.missing(name)
		}
		return v, nil
	case "-":
		if counts {
			return v, nil
		}
		return e.expandWithDepth(operand, depth+1)
	case "+":
		if !counts {
			return "", nil
		}
		return e.expandWithDepth(operand, depth+1)
	case "?":
		if counts {
			return v, nil
		}
		reason, err := e.expandWithDepth(operand, depth+1)
		if err != nil {
			return "", err
		}
		if reason == "" {
			reason = "it has no value"
		}
		return "", fmt.Errorf("the variable %s is required: %s", name, reason)
	}
	return "", fmt.Errorf("${%s} is no reference that compose knows; write $$ for a dollar sign", shorten(inner))
}

func leadingName(text string) string {
	for i := range len(text) {
		c := text[i]
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return text[:i]
		}
	}
	return text
}

// parseEnvFile parses an environment file. Values in single quotes are literal; in other values, variables of lookup and
// of earlier lines are replaced. A name without "=" has the value of lookup, if there is one. missing is called for a
// variable of a value that has no value and no default, with the last line of the value.
func parseEnvFile(text string, lookup func(string) (string, bool), missing func(line int, name string)) (names []string, values map[string]string, err error) {
	values = map[string]string{}
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	number := 0
	find := func(name string) (string, bool) {
		if v, ok := lookup(name); ok {
			return v, true
		}
		v, ok := values[name]
		return v, ok
	}
	for text != "" {
		number++
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		line = strings.TrimSpace(strings.TrimPrefix(line, "export "))
		name, raw, hasValue := cutName(line)
		if name == "" || strings.ContainsAny(name, " \t'\"") {
			return nil, nil, fmt.Errorf("line %d: %q is not NAME=VALUE", number, shorten(line))
		}
		if !hasValue {
			if v, ok := lookup(name); ok {
				names, values[name] = append(names, name), v
			}
			continue
		}
		raw = strings.TrimSpace(raw)
		v, quote := raw, byte(0)
		if raw != "" && (raw[0] == '\'' || raw[0] == '"') {
			quote = raw[0]
			for closingQuote(raw) < 0 && text != "" { // a quoted value can have several lines
				var next string
				next, text, _ = strings.Cut(text, "\n")
				raw += "\n" + next
				number++
			}
			end := closingQuote(raw)
			if end < 0 {
				return nil, nil, fmt.Errorf("line %d: the value of %s has no closing quote", number, name)
			}
			v = raw[1:end]
		} else if i := strings.Index(" "+v, " #"); i >= 0 {
			v = strings.TrimSpace(v[:max(i-1, 0)])
		}
		if quote == '"' {
			v = unescapeDoubleQuoted(v)
		}
		if quote != '\'' {
			e := expander{lookup: find, missing: func(name string) { missing(number, name) }}
			if v, err = e.expand(v); err != nil {
				return nil, nil, fmt.Errorf("line %d: %s: %w", number, name, err)
			}
		}
		if _, ok := values[name]; !ok {
			names = append(names, name)
		}
		values[name] = v
	}
	return names, values, nil
}

// cutName cuts a line at the first "=", or at ": ", which environment files can have instead.
func cutName(line string) (name, rest string, found bool) {
	i := strings.IndexAny(line, "=:")
	if i < 0 {
		return line, "", false
	}
	return strings.TrimSpace(line[:i]), line[i+1:], true
}

// closingQuote returns the index of the quote that closes the first one, or -1.
func closingQuote(text string) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text):
			i++
		case text[i] == text[0]:
			return i
		}
	}
	return -1
}

func unescapeDoubleQuoted(text string) string {
	return strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", `\"`, `"`, `\\`, `\`, `\$`, "$$").Replace(text)
}
