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

// SetSecrets replaces the values of the task's secret blocks, by the name of their references with
// SecretPrefix. They are no variables of the task.
func (b *Builder) SetSecrets(values map[string]string) {
	b.set(func(in *envInputs) { in.secrets = values })
}

// HasSecrets reports whether the task has values of secret blocks.
func (b *Builder) HasSecrets() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.in.secrets) > 0
}

// Redact replaces the values of the task's secret blocks in a text that others than the task can read.
func (b *Builder) Redact(text string) string {
	b.mu.Lock()
	values := slices.Collect(maps.Values(b.in.secrets))
	b.mu.Unlock()
	if len(values) == 0 {
		return text
	}
	// At each position of the text the first value is replaced that occurs there, so that a value must
	// precede its own prefixes.
	slices.SortFunc(values, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var oldNew []string
	for _, value := range values {
		if value == "" {
			continue
		}
		oldNew = append(oldNew, value, redactedText)
		if quoted := strconv.Quote(value); quoted != `"`+value+`"` {
			oldNew = append(oldNew, quoted[1:len(quoted)-1], redactedText)
		}
	}
	return strings.NewReplacer(oldNew...).Replace(text)
}

// MissingSecret returns the first reference in s to a key of a secret block that has no value, without
// ${ and }. It is empty if there is none.
func (e *Env) MissingSecret(s string) string {
	for name, _, end := nextReference(s, 0); end >= 0; name, _, end = nextReference(s, end) {
		if !strings.HasPrefix(name, SecretPrefix) {
			continue
		}
		if _, known := e.lookup(name); !known {
			return name
		}
	}
	return ""
}
