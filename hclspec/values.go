package hclspec

import "strings"

// MaxValues is the maximum number of values in a config block: strings, numbers and so
// on, including those in lists and blocks at any depth. The kernel rejects a command
// with more than about twice as many arguments. For hosts only.
const MaxValues = 100_000

// CountValues returns the number of values in a config block. For hosts only.
func CountValues(config map[string]any) int { return countValues(config) }

func countValues(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, elem := range v {
			n += countValues(elem)
		}
	case []any:
		for _, elem := range v {
			n += countValues(elem)
		}
	case []map[string]any:
		for _, elem := range v {
			n += countValues(elem)
		}
	}
	return n
}

var templateEscaper = strings.NewReplacer("${", "$${", "%{", "%%{")

// Verbatim escapes a text so that block.Decode returns it unchanged, and does not interpret it as
// a template. For hosts only.
func Verbatim(text string) string { return templateEscaper.Replace(text) }
