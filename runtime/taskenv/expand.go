package taskenv

import "strings"

// budget bounds how much text replacements may add in one go. References that
// refer to each other can double the text at each step; no environment beyond
// this size can be handed to a process.
const budget = 8 << 20

// expand replaces each ${name} that lookup knows, in one pass: what it puts in
// is not looked at again. Everything else stays as it is, also what would take
// more than left, from which it subtracts what it has put in.
func expand(s string, left *int, lookup func(name string) (string, bool)) string {
	var out strings.Builder
	done := 0 // s up to here is in out
	for i := 0; ; {
		name, start, end := nextRef(s, i)
		if end < 0 {
			break
		}
		i = end
		value, ok := lookup(name)
		if !ok || len(value) > *left {
			continue
		}
		*left -= len(value)
		if start == 0 && end == len(s) {
			return value // shares the text instead of copying it
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

// nextRef finds the first ${name} in s[from:]. end is negative if there is none.
func nextRef(s string, from int) (name string, start, end int) {
	for {
		i := strings.Index(s[from:], "${")
		if i < 0 {
			return "", 0, -1
		}
		start = from + i
		end = start + 2
		for end < len(s) && isNameByte(s[end]) {
			end++
		}
		if end < len(s) && s[end] == '}' && end > start+2 {
			return s[start+2 : end], start, end + 1
		}
		from = start + 2
	}
}

func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'
}

// cleanKey replaces what does not belong into the name of a variable, in the
// families of names that are made from labels and meta keys.
func cleanKey(key string) string {
	for _, prefix := range []string{"NOMAD_ADDR_", "NOMAD_IP_", "NOMAD_PORT_", "NOMAD_HOST_PORT_", "NOMAD_META_"} {
		if strings.HasPrefix(key, prefix) {
			return clean(key)
		}
	}
	return key
}

// clean replaces each byte that is no letter, digit, dot or underscore by an
// underscore.
func clean(key string) string {
	dirty := func(c byte) bool { return !isNameByte(c) || c == '-' }
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
