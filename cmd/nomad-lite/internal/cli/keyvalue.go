package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// ParseKeyValues parses words of the form name=value.
func ParseKeyValues(words []string) (map[string]string, error) {
	all := make(map[string]string, len(words))
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not of the form name=value", word)
		}
		all[name] = value
	}
	return all, nil
}

// ReadFileOrStdin returns the content of a file with a payload, or of standard input for "-".
func (s *Streams) ReadFileOrStdin(path string) (payload []byte, err error) {
	if path == "-" {
		payload, err = io.ReadAll(s.In)
	} else {
		payload, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read payload: %w", err)
	}
	return payload, nil
}
