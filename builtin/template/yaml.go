package template

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// toYAML writes a value as block YAML, with quotes only for strings that would
// be read as another type.
func toYAML(v any) (string, error) {
	plain, err := normal(v)
	if err != nil {
		return "", err
	}
	w := &yamlWriter{}
	if text, ok := plain.(string); ok {
		w.scalar(text, 2)
	} else {
		w.value(plain, 0)
	}
	if w.open {
		return limitLength(w.String())
	}
	return limitLength(strings.TrimSuffix(w.String(), "\n"))
}

type yamlWriter struct {
	strings.Builder
	open bool // the last line end is part of a string
}

// value writes a value at the current position. Its further lines are indented
// by the given number of blanks.
func (w *yamlWriter) value(v any, blanks int) {
	switch v := v.(type) {
	case map[string]any:
		for i, k := range slices.Sorted(maps.Keys(v)) {
			w.indent(blanks, i > 0)
			w.WriteString(quoteYAML(k) + ":")
			if !holds(v[k]) {
				w.WriteByte(' ')
				w.value(v[k], blanks+2)
				continue
			}
			deeper := blanks + 2
			if _, list := v[k].([]any); list {
				deeper = blanks
			}
			w.WriteByte('\n')
			w.indent(deeper, true)
			w.value(v[k], deeper)
		}
	case []any:
		for i, e := range v {
			w.indent(blanks, i > 0)
			w.WriteString("- ")
			w.value(e, blanks+2)
		}
	}
	if !holds(v) {
		w.scalar(v, blanks)
	}
}

// holds reports whether a value is a map or a list with elements.
func holds(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	}
	return false
}

func (w *yamlWriter) indent(blanks int, really bool) {
	for i := 0; really && i < blanks; i++ {
		w.WriteByte(' ')
	}
}

func (w *yamlWriter) scalar(v any, blanks int) {
	s, ok := v.(string)
	if w.open = ok && blockYAML(s) && strings.HasSuffix(s, "\n"); !ok || !blockYAML(s) {
		w.WriteString(scalarYAML(v) + "\n")
		return
	}
	if w.open {
		w.WriteString("|\n")
	} else {
		w.WriteString("|-\n")
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		w.indent(blanks, line != "")
		w.WriteString(line + "\n")
	}
}

func scalarYAML(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return quoteYAML(v)
	case map[string]any:
		return "{}"
	case []any:
		return "[]"
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// blockYAML reports whether a multi-line string can be written as a block
// without escapes.
func blockYAML(s string) bool {
	if !strings.Contains(s, "\n") || s[0] == '\n' || s[0] == ' ' || strings.HasSuffix(s, "\n\n") {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && !printable(r) })
}

func printable(r rune) bool {
	return unicode.IsPrint(r) && r != unicode.ReplacementChar && r != '\ufeff'
}

// plainYAML matches strings that need no quotes unless they are in wordsYAML:
// they start with a letter, _ or /, and have colons only inside.
var plainYAML = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z_/](?:[A-Za-z0-9_./@+-]|:[A-Za-z0-9_/])*(?: (?:[A-Za-z0-9_./@+-]|:[A-Za-z0-9_/])+)*$`)
})

// wordsYAML have a meaning other than a string in some version of YAML.
var wordsYAML = strings.Fields("null true false yes no on off y n")

func quoteYAML(s string) string {
	if plainYAML().MatchString(s) && !slices.Contains(wordsYAML, strings.ToLower(s)) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case printable(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
