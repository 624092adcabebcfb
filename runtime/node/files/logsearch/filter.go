package logsearch

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

const (
	maxPatternBytes = 1000
	maxPatternSize  = 2000 // in patternSize's unit; a match takes at most this many steps for each byte
)

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

// NewRegexpFilter returns a filter for lines that match a package regexp expression. Its time is proportional to a line's
// length, whatever the expression.
func NewRegexpFilter(expression string) (Filter, error) {
	if len(expression) > maxPatternBytes {
		return Filter{}, fmt.Errorf("the regular expression has more than %d bytes", maxPatternBytes)
	}
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return Filter{}, err
	}
	if patternSize(parsed) > maxPatternSize {
		return Filter{}, errors.New("the regular expression has too many repetitions")
	}
	pattern, err := regexp.Compile(expression)
	return Filter{pattern: pattern}, err
}

// patternSize returns about how many instructions a regular expression compiles to.
func patternSize(r *syntax.Regexp) int {
	size := 1
	switch r.Op {
	case syntax.OpLiteral:
		size = len(r.Rune)
	case syntax.OpRepeat:
		return size + max(r.Min+1, r.Max)*patternSize(r.Sub[0])
	}
	for _, sub := range r.Sub {
		size += patternSize(sub)
	}
	return size
}

// matches reports whether the filter selects a line without its line end.
func (f Filter) matches(line []byte) bool {
	if f.pattern != nil {
		return f.pattern.Match(line)
	}
	return len(f.lowerText) == 0 || bytes.Contains(bytes.ToLower(line), f.lowerText)
}

// canMatchIn reports false if no line in a text can match. It is faster than matches for each line.
func (f Filter) canMatchIn(text []byte) bool {
	return len(f.lowerText) == 0 || bytes.Contains(bytes.ToLower(text), f.lowerText)
}
