package logsearch

import (
	"bytes"
	"fmt"
	"regexp"
)

// maxPatternBytes limits the memory and the time of a regular expression.
const maxPatternBytes = 1000

// Filter selects lines. The zero value selects all lines.
type Filter struct {
	lowerText []byte
	pattern   *regexp.Regexp
}

// NewTextFilter returns a filter for lines with a text in upper or lower case.
func NewTextFilter(text string) (Filter, error) {
	if len(text) > maxPatternBytes {
		return Filter{}, fmt.Errorf("the text has more than %d bytes", maxPatternBytes)
	}
	return Filter{lowerText: bytes.ToLower([]byte(text))}, nil
}

// NewRegexpFilter returns a filter for lines that a regular expression of package regexp matches. Its time is proportional to the
// length of a line, whatever the expression.
func NewRegexpFilter(expression string) (Filter, error) {
	if len(expression) > maxPatternBytes {
		return Filter{}, fmt.Errorf("the regular expression has more than %d bytes", maxPatternBytes)
	}
	pattern, err := regexp.Compile(expression)
	return Filter{pattern: pattern}, err
}

// matches reports whether the filter selects a line without its line end.
func (f Filter) matches(line []byte) bool {
	if f.pattern != nil {
		return f.pattern.Match(line)
	}
	return len(f.lowerText) == 0 || bytes.Contains(bytes.ToLower(line), f.lowerText)
}

// canMatchIn reports false if no line of a text can match. It is faster than matches for each line.
func (f Filter) canMatchIn(text []byte) bool {
	return len(f.lowerText) == 0 || bytes.Contains(bytes.ToLower(text), f.lowerText)
}
