package taskenv

import "strings"

// SecretPrefix is the prefix of the references to the values of secret blocks, ${secret.<name>.<key>}.
const SecretPrefix = "secret."

// SetSecrets replaces the values of the task's secret blocks. The keys of the map are the names in references,
// secret.<name>.<key>. The values do not become variables of the task.
func (b *Builder) SetSecrets(valueByReference map[string]string) {
	b.changeInputs(func(in *envInputs) { in.valueBySecretReference = valueByReference })
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
