package taskenv

import "strings"

// maxInsertedBytes limits how many bytes references may insert in one Build or ReplaceReferences call. Variables
// that refer to each other could otherwise double the text at each step. No process can have an environment this
// large.
const maxInsertedBytes = 8 << 20

// expandReferences replaces each ${name} for which lookup returns a value, in one pass: it does not expand
// the inserted text. Other text is unchanged, including references with a value longer than
// remainingBytes. expandReferences subtracts the number of inserted bytes from remainingBytes.
func expandReferences(s string, remainingBytes *int, lookup func(name string) (string, bool)) string {
	var out strings.Builder
	done := 0 // s[:done] is already written to out, with its references replaced
	for i := 0; ; {
		name, start, end := nextReference(s, i)
		if end < 0 {
			break
		}
		i = end
		value, ok := lookup(name)
		if !ok || len(value) > *remainingBytes {
			continue
		}
		*remainingBytes -= len(value)
		if start == 0 && end == len(s) {
			return value // a value that is the whole text is returned without a copy
		}
		out.WriteString(s[done:start])
		out.WriteString(value)
		done = end
	}
	if done == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}

// References returns the names of all references in s, without ${ and }.
func References(s string) (names []string) {
	for name, _, end := nextReference(s, 0); end >= 0; name, _, end = nextReference(s, end) {
		names = append(names, name)
	}
	return names
}

// nextReference returns the first ${name} in s[from:], which is s[start:end]. end is negative if there is none.
func nextReference(s string, from int) (name string, start, end int) {
	for {
		i := strings.Index(s[from:], "${")
		if i < 0 {
			return "", 0, -1
		}
		start = from + i
		end = start + 2
		for end < len(s) && isReferenceNameByte(s[end]) {
			end++
		}
		if end < len(s) && s[end] == '}' && end > start+2 {
			return s[start+2 : end], start, end + 1
		}
		from = start + 2
	}
}

func isReferenceNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'
}

// cleanPortOrMetaVarName replaces the invalid characters in a variable name with a port label or meta key
// prefix. It returns other names unchanged.
func cleanPortOrMetaVarName(key string) string {
	for _, prefix := range []string{"NOMAD_ADDR_", "NOMAD_IP_", "NOMAD_PORT_", "NOMAD_HOST_PORT_", "NOMAD_META_"} {
		if strings.HasPrefix(key, prefix) {
			return replaceInvalidNameChars(key)
		}
	}
	return key
}

// replaceInvalidNameChars replaces each byte except letters, digits, dots and underscores by an underscore.
func replaceInvalidNameChars(key string) string {
	dirty := func(c byte) bool { return !isReferenceNameByte(c) || c == '-' }
	for i := range len(key) {
		if !dirty(key[i]) {
			continue
		}
		b := []byte(key)
		for j := i; j < len(b); j++ {
			if dirty(b[j]) {
				b[j] = '_'
			}
		}
		return string(b)
	}
	return key
}
