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
	plain, err := toJSONTypes(v)
	if err != nil {
		return "", err
	}
	w := &yamlWriter{}
	if text, ok := plain.(string); ok {
		w.writeScalar(text, 2)
	} else {
		w.writeValue(plain, 0)
	}
	if w.endsWithNewline {
		return limitLength(w.String())
	}
	return limitLength(strings.TrimSuffix(w.String(), "\n"))
}

type yamlWriter struct {
	strings.Builder
	endsWithNewline bool // the last newline belongs to a string
}

// writeValue writes a value at the current position. If the value has more lines,
// they are indented by the given number of blanks.
func (w *yamlWriter) writeValue(v any, blanks int) {
	switch v := v.(type) {
	case map[string]any:
		for i, k := range slices.Sorted(maps.Keys(v)) {
			w.writeIndent(blanks, i > 0)
			w.WriteString(quoteYAMLString(k) + ":")
			if !isNonEmptyCollection(v[k]) {
				w.WriteByte(' ')
				w.writeValue(v[k], blanks+2)
				continue
			}
			deeper := blanks + 2
			if _, list := v[k].([]any); list {
				deeper = blanks
			}
			w.WriteByte('\n')
			w.writeIndent(deeper, true)
			w.writeValue(v[k], deeper)
		}
	case []any:
		for i, e := range v {
			w.writeIndent(blanks, i > 0)
			w.WriteString("- ")
			w.writeValue(e, blanks+2)
		}
	}
	if !isNonEmptyCollection(v) {
		w.writeScalar(v, blanks)
	}
}

// isNonEmptyCollection reports whether a value is a map or a list with elements.
func isNonEmptyCollection(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	}
	return false
}

func (w *yamlWriter) writeIndent(blanks int, really bool) {
	for i := 0; really && i < blanks; i++ {
		w.WriteByte(' ')
	}
}

func (w *yamlWriter) writeScalar(v any, blanks int) {
	s, ok := v.(string)
	if w.endsWithNewline = ok && canBeYAMLBlock(s) && strings.HasSuffix(s, "\n"); !ok || !canBeYAMLBlock(s) {
		w.WriteString(formatYAMLScalar(v) + "\n")
		return
	}
	if w.endsWithNewline {
		w.WriteString("|\n")
	} else {
		w.WriteString("|-\n")
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		w.writeIndent(blanks, line != "")
		w.WriteString(line + "\n")
	}
}

func formatYAMLScalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return quoteYAMLString(v)
	case map[string]any:
		return "{}"
	case []any:
		return "[]"
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// canBeYAMLBlock reports whether a multi-line string can be written as a block
// without escapes.
func canBeYAMLBlock(s string) bool {
	if !strings.Contains(s, "\n") || s[0] == '\n' || s[0] == ' ' || strings.HasSuffix(s, "\n\n") {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && !isYAMLPrintable(r) })
}

func isYAMLPrintable(r rune) bool {
	return unicode.IsPrint(r) && r != unicode.ReplacementChar && r != '\ufeff'
}

// plainYAMLPattern matches strings that need no quotes unless they are in reservedYAMLWords:
// they start with a letter, _ or /, and have colons only inside.
var plainYAMLPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z_/](?:[A-Za-z0-9_./@+-]|:[A-Za-z0-9_/])*(?: (?:[A-Za-z0-9_./@+-]|:[A-Za-z0-9_/])+)*$`)
})

// reservedYAMLWords have a meaning other than a string in some version of YAML.
var reservedYAMLWords = strings.Fields("null true false yes no on off y n")

func quoteYAMLString(s string) string {
	if plainYAMLPattern().MatchString(s) && !slices.Contains(reservedYAMLWords, strings.ToLower(s)) {
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
		case isYAMLPrintable(r):
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
