package template

import (
	"fmt"
	"io"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// Limits for regular expressions. The time of a search is at most proportional to the length of the text times the number of
// instructions of the expression, but the search for all matches can read the text once for each match.
const (
	maxPatternLength = 4 << 10 // maximum bytes of an expression
	maxInstructions  = 1 << 15 // maximum instructions of an expression, in which each repetition counts separately
	maxSearchSteps   = 1 << 27 // product of the instructions and the read characters of one function call
)

// limitedPattern is a regular expression whose searches have a limited number of steps.
type limitedPattern struct {
	regexp                  *regexp.Regexp
	regexpIgnoringFirstChar *regexp.Regexp // nil before its first use; matches after the first character of the text, which is only context
	exprIgnoringFirstChar   string
	regexpInstructionCount  int
}

func compilePattern(expr string) (*limitedPattern, error) {
	if len(expr) > maxPatternLength {
		return nil, fmt.Errorf("a regular expression of more than %d bytes", maxPatternLength)
	}
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, err
	}
	p := &limitedPattern{regexpInstructionCount: countInstructions(tree), exprIgnoringFirstChar: `\A(?s:.)(?s:.*?)(` + tree.String() + ")"}
	if p.regexpInstructionCount > maxInstructions {
		return nil, fmt.Errorf("a regular expression with more than %d instructions", maxInstructions)
	}
	p.regexp, err = regexp.Compile(expr)
	return p, err
}

// countInstructions returns approximately the number of instructions of a compiled expression.
func countInstructions(tree *syntax.Regexp) int {
	n := 1 + len(tree.Rune)
	for _, sub := range tree.Sub {
		n += countInstructions(sub)
	}
	if tree.Op == syntax.OpRepeat {
		n *= max(1, tree.Min, tree.Max)
	}
	return min(n, 2*maxInstructions) // limited, so that the products cannot overflow
}

// limitedRuneReader reads the characters of a text until the steps of the search are used up.
type limitedRuneReader struct {
	text           string
	byteOffset     int
	remainingSteps int // steps that are left; negative when they are used up
	stepsPerChar   int // steps that each character costs
}

func (r *limitedRuneReader) ReadRune() (char rune, size int, err error) {
	if r.byteOffset >= len(r.text) || r.remainingSteps < 0 {
		return 0, 0, io.EOF
	}
	char, size = utf8.DecodeRuneInString(r.text[r.byteOffset:])
	r.byteOffset += size
	r.remainingSteps -= r.stepsPerChar
	return char, size, nil
}

// findMatches returns the positions of at most maxMatches matches and of their groups, or of all matches
// if maxMatches is negative. It returns an error if the text has more matches than a list can have
// elements.
func (p *limitedPattern) findMatches(text string, maxMatches int) (matches [][]int, err error) {
	groups := p.regexp.NumSubexp() + 1
	steps, previousEnd := maxSearchSteps, -1
	for at := 0; at <= len(text) && (maxMatches < 0 || len(matches) < maxMatches); {
		if len(matches)*groups > maxTemplateBodyExecutions {
			return nil, fmt.Errorf("more than %d matches", len(matches)-1)
		}
		// A search starts one character before its position, because that character decides whether ^ and \b match.
		search, start, skipped := p.regexp, 0, 0
		if at > 0 {
			if p.regexpIgnoringFirstChar == nil {
				if p.regexpIgnoringFirstChar, err = regexp.Compile(p.exprIgnoringFirstChar); err != nil {
					return nil, err
				}
			}
			_, size := utf8.DecodeLastRuneInString(text[:at])
			search, start, skipped = p.regexpIgnoringFirstChar, at-size, 2
		}
		r := &limitedRuneReader{text: text, byteOffset: start, remainingSteps: steps, stepsPerChar: p.regexpInstructionCount}
		found := search.FindReaderSubmatchIndex(r)
		if steps = r.remainingSteps; steps < 0 {
			return nil, fmt.Errorf("the search takes more than %d steps", maxSearchSteps)
		}
		if found == nil {
			break
		}
		match := found[skipped:]
		for i := range match {
			if match[i] >= 0 {
				match[i] += start
			}
		}
		isAccepted := true
		if match[1] == at {
			// As in package regexp, an empty match directly after another match does not count.
			isAccepted = match[0] != previousEnd
			_, size := utf8.DecodeRuneInString(text[at:])
			at += max(1, size)
		} else {
			at = match[1]
		}
		if previousEnd = match[1]; isAccepted {
			matches = append(matches, match)
		}
	}
	return matches, nil
}

// compileAndFindMatches compiles an expression and returns the result of findMatches.
func compileAndFindMatches(expr, text string, maxMatches int) (*limitedPattern, [][]int, error) {
	p, err := compilePattern(expr)
	if err != nil {
		return nil, nil, err
	}
	matches, err := p.findMatches(text, maxMatches)
	return p, matches, err
}

func regexMatch(expr, text string) (bool, error) {
	_, matches, err := compileAndFindMatches(expr, text, 1)
	return len(matches) > 0, err
}

func regexFind(expr, text string) (string, error) {
	_, matches, err := compileAndFindMatches(expr, text, 1)
	if len(matches) == 0 {
		return "", err
	}
	return text[matches[0][0]:matches[0][1]], nil
}

func regexFindAll(expr, text string, n int) (found []string, err error) {
	_, matches, err := compileAndFindMatches(expr, text, n)
	for _, m := range matches {
		found = append(found, text[m[0]:m[1]])
	}
	return found, err
}

// regexSplit splits a text into at most n parts, or into any number of parts if n is negative. Empty matches at the start and
// at the end of the text split nothing.
func regexSplit(expr, text string, n int) ([]string, error) {
	_, matches, err := compileAndFindMatches(expr, text, n)
	if err != nil || n == 0 {
		return nil, err
	}
	if expr == "" && text == "" {
		return []string{}, nil
	}
	parts, begin := []string{}, 0
	for _, m := range matches {
		if m[1] > 0 && m[0] < len(text) && len(parts) != n-1 {
			parts = append(parts, text[begin:m[0]])
			begin = m[1]
		}
	}
	return append(parts, text[begin:]), nil
}

// replaceMatches replaces each match with the text that expand appends.
func replaceMatches(expr, text string, expand func(out []byte, p *limitedPattern, match []int) []byte) (string, error) {
	p, matches, err := compileAndFindMatches(expr, text, -1)
	if err != nil {
		return "", err
	}
	var out []byte
	last := 0
	for _, m := range matches {
		out = expand(append(out, text[last:m[0]]...), p, m)
		last = m[1]
		if len(out) > maxContentSize {
			break
		}
	}
	return checkTextLengthLimit(string(append(out, text[last:]...)))
}

// regexReplaceAll replaces all matches, with the groups that the replacement names. A replacement can name a group many
// times, so its size is limited for one match.
func regexReplaceAll(expr, replacement, text string) (string, error) {
	if err := checkCopiedTextLengthLimit(strings.Count(replacement, "$"), len(text), len(replacement)); err != nil {
		return "", err
	}
	return replaceMatches(expr, text, func(out []byte, p *limitedPattern, match []int) []byte {
		return p.regexp.ExpandString(out, replacement, text, match)
	})
}

func sprigRegexReplaceAll(expr, text, replacement string) (string, error) {
	return regexReplaceAll(expr, replacement, text)
}

func regexReplaceAllLiteral(expr, text, replacement string) (string, error) {
	return replaceMatches(expr, text, func(out []byte, _ *limitedPattern, _ []int) []byte { return append(out, replacement...) })
}
