package jobspec

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

const (
	// maxBcryptCost is the highest cost of bcrypt: each step doubles the time, and 31 takes days.
	maxBcryptCost = 16
	// maxDistinctElements bounds the list of a function whose time grows with the
	// square of its length.
	maxDistinctElements = 10_000
)

var errTooLarge = errors.New("the result would be too large")

// argumentGuards reject arguments with which a function would use too much time or memory before its
// result could be measured.
var argumentGuards = map[string]func(args []cty.Value) error{
	"bcrypt": func(args []cty.Value) error {
		if len(args) > 1 && areAllKnownAndNotNull(args[1]) && args[1].GreaterThan(cty.NumberIntVal(maxBcryptCost)).True() {
			return fmt.Errorf("the cost may be %d at most", maxBcryptCost)
		}
		return nil
	},
	"distinct": func(args []cty.Value) error {
		if areAllKnownAndNotNull(args[0]) && args[0].CanIterateElements() && args[0].LengthInt() > maxDistinctElements {
			return fmt.Errorf("the list may have %d elements at most", maxDistinctElements)
		}
		return nil
	},
	"format":     rejectHugeFormatOutput,
	"formatlist": rejectHugeFormatOutput,
	"indent": func(args []cty.Value) error {
		if !areAllKnownAndNotNull(args...) {
			return nil
		}
		spaces, _ := args[0].AsBigFloat().Int64()
		return checkProductUnderMaxCost(spaces, int64(strings.Count(args[1].AsString(), "\n")))
	},
	"join": func(args []cty.Value) error {
		if !areAllKnownAndNotNull(args...) {
			return nil
		}
		elements := 0
		for _, list := range args[1:] {
			elements += list.LengthInt()
		}
		return checkProductUnderMaxCost(int64(len(args[0].AsString())), int64(elements))
	},
	"jsondecode": func(args []cty.Value) error {
		if !areAllKnownAndNotNull(args...) {
			return nil
		}
		return Err(nesting.CheckJSON([]byte(args[0].AsString()), "argument"))
	},
	"regex_replace": func(args []cty.Value) error {
		if !areAllKnownAndNotNull(args...) {
			return nil
		}
		// Each match is replaced, and in the worst case there is a match at every position.
		return checkProductUnderMaxCost(int64(len(args[0].AsString())), int64(1+len(args[2].AsString())))
	},
	"replace": func(args []cty.Value) error {
		if !areAllKnownAndNotNull(args...) {
			return nil
		}
		return checkProductUnderMaxCost(int64(strings.Count(args[0].AsString(), args[1].AsString())), int64(len(args[2].AsString())))
	},
	"setproduct": func(args []cty.Value) error {
		product := int64(1)
		for _, set := range args {
			if !areAllKnownAndNotNull(set) || !set.CanIterateElements() {
				return nil
			}
			if product *= int64(1 + set.LengthInt()); product > maxEvaluationCost/blockCost {
				return errTooLarge
			}
		}
		return nil
	},
	"yamldecode": func(args []cty.Value) error {
		if !areAllKnownAndNotNull(args...) {
			return nil
		}
		return checkYAMLNesting(args[0].AsString())
	},
}

func areAllKnownAndNotNull(args ...cty.Value) bool {
	for _, arg := range args {
		if !arg.IsKnown() || arg.IsNull() {
			return false
		}
	}
	return true
}

// checkProductUnderMaxCost rejects a product that is larger than the maximum value size.
func checkProductUnderMaxCost(a, b int64) error {
	if a > 0 && b > 0 && a > maxEvaluationCost/b {
		return errTooLarge
	}
	return nil
}

var (
	wideFormatVerbPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[^%a-zA-Z]*[0-9]{6}`) })
	hugeExponentPattern   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[eE][+-]?0*[1-9][0-9]{4}`) })
)

// rejectHugeFormatOutput rejects a width of millions, and a text that becomes a number with as many digits.
func rejectHugeFormatOutput(args []cty.Value) error {
	for i, arg := range args {
		if !areAllKnownAndNotNull(arg) || arg.Type() != cty.String {
			continue
		}
		text := arg.AsString()
		if i == 0 && wideFormatVerbPattern().MatchString(text) {
			return errors.New("a width or precision may have 5 digits at most")
		}
		if i > 0 && len(text) > 0 && strings.IndexByte("+-.0123456789", text[0]) >= 0 && hugeExponentPattern().MatchString(text) {
			return errors.New("a number is too large or too small to be written out")
		}
	}
	return nil
}

// checkYAMLNesting rejects a text that could nest too deep for the recursive decoder: by brackets, or by
// "- - - …" in one line. Nesting by indentation needs a text of quadratic length, so it has no
// limit of its own.
func checkYAMLNesting(text string) error {
	flow := 0
	for line := range strings.Lines(text) {
		block, dashes := 0, true
		for _, c := range line {
			switch {
			case c == '[' || c == '{':
				flow++
			case c == ']' || c == '}':
				flow = max(0, flow-1)
			case dashes && (c == '-' || c == '?'):
				block++
			}
			dashes = dashes && (c == '-' || c == '?' || c == ' ' || c == '\t')
			if flow+block > nesting.Max {
				return fmt.Errorf("the text nests more than %d levels deep", nesting.Max)
			}
		}
	}
	return nil
}
