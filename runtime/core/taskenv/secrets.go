package taskenv

import "strings"

// SecretPrefix is the prefix for references to secret block values, ${secret.<name>.<key>}.
const SecretPrefix = "secret."

// SetSecrets replaces the values from the task's secret blocks. The map's keys are the names in references,
// secret.<name>.<key>. The values do not become task variables.
func (b *Builder) SetSecrets(valueByReference map[string]string) {
	b.changeInputs(func(in *envInputs) { in.valueBySecretReference = valueByReference })
}

// FirstMissingSecretReference returns the first reference in s to a secret block key without a value, without ${ and }. It
// returns "" if there is none.
func (e *Env) FirstMissingSecretReference(s string) string {
	for _, name := range e.UnresolvedReferences(s) {
		if strings.HasPrefix(name, SecretPrefix) {
			return name
		}
	}
	return ""
}
