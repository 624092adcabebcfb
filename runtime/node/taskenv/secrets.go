package taskenv

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// SecretPrefix is the prefix of the references to the values of secret blocks, ${secret.<name>.<key>}.
const SecretPrefix = "secret."

// redactedText replaces the value of a secret.
const redactedText = "<redacted>"

// SetSecrets replaces the values of the task's secret blocks. The keys of the map are the names in references,
// secret.<name>.<key>. The values do not become variables of the task.
func (b *Builder) SetSecrets(valueByReference map[string]string) {
	b.changeInputs(func(in *envInputs) { in.valueBySecretReference = valueByReference })
}

// HasSecrets reports whether the task has values of secret blocks.
func (b *Builder) HasSecrets() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.inputs.valueBySecretReference) > 0
}

// RedactSecrets returns the text with the values of the task's secret blocks replaced by redactedText. It must be
// called for a text that is shown outside the task, such as an event.
func (b *Builder) RedactSecrets(text string) string {
	b.mu.Lock()
	values := slices.Collect(maps.Values(b.inputs.valueBySecretReference))
	b.mu.Unlock()
	if len(values) == 0 {
		return text
	}
	// The Replacer uses the first value in its list that matches at a position of the text. So a value must precede
	// the values that are its prefixes.
	slices.SortFunc(values, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var oldNew []string
	for _, value := range values {
		if value == "" {
			continue
		}
		oldNew = append(oldNew, value, redactedText)
		// Error texts contain values in quotes, with escapes.
		if quoted := strconv.Quote(value); quoted != `"`+value+`"` {
			oldNew = append(oldNew, quoted[1:len(quoted)-1], redactedText)
		}
	}
	return strings.NewReplacer(oldNew...).Replace(text)
}

// FirstMissingSecretReference returns the first reference in s to a key of a secret block that has no value, without ${ and
// }. It returns "" if there is none.
func (e *Env) FirstMissingSecretReference(s string) string {
	for name, _, end := nextReference(s, 0); end >= 0; name, _, end = nextReference(s, end) {
		if !strings.HasPrefix(name, SecretPrefix) {
			continue
		}
		if _, known := e.lookupReference(name); !known {
			return name
		}
	}
	return ""
}
