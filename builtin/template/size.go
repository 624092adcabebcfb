package template

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// maxValueSize limits each value that a template builds, and the output of each
// print, in bytes.
const maxValueSize = 2 * maxContentSize

// valueSize returns approximately how many bytes a value has when it is printed, and an error if
// the number exceeds maxValueSize. A value that contains another value twice, at many levels, can
// be built fast and grows exponentially when it is printed, so every function that builds values
// calls valueSize. Values are immutable, so that no value can contain itself.
func valueSize(v any) (int, error) {
	left := maxValueSize
	err := subtractValueSize(reflect.ValueOf(v), 0, 0, &left)
	return maxValueSize - left, err
}

// checkIndentedSizeLimit returns an error if a value is too large when it is printed with an indentation for each
// level.
func checkIndentedSizeLimit(v any, indent string) error {
	left := maxValueSize
	return subtractValueSize(reflect.ValueOf(v), 0, len(indent), &left)
}

// checkValueSizeLimit returns v, or an error if v is too large.
func checkValueSizeLimit[T any](v T) (T, error) {
	_, err := valueSize(v)
	return v, err
}

// valueOverhead is the number of bytes that each value counts in addition to
// its text.
const valueOverhead = 8

var errScratchAsValue = errors.New("scratch is not a value: take what is in it with scratch.Get")

func subtractValueSize(v reflect.Value, depth, indent int, remainingBytes *int) error {
	switch *remainingBytes -= valueOverhead + depth*indent; {
	case v.Kind() == reflect.String:
		*remainingBytes -= v.Len()
	case v.Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[*scratch]():
		return errScratchAsValue
	}
	switch {
	case *remainingBytes < 0:
		return fmt.Errorf("a value of more than %d bytes", maxValueSize)
	case depth > maxNestingDepth:
		return fmt.Errorf("a value that is nested more than %d deep", maxNestingDepth)
	}
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			return subtractValueSize(v.Elem(), depth, indent, remainingBytes)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := subtractValueSize(v.Index(i), depth+1, indent, remainingBytes); err != nil {
				return err
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			for _, part := range []reflect.Value{entries.Key(), entries.Value()} {
				if err := subtractValueSize(part, depth+1, indent, remainingBytes); err != nil {
					return err
				}
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if err := subtractValueSize(v.Field(i), depth+1, indent, remainingBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRepeatedValueSizeLimit returns an error if a value is too large to be compared or copied the given number of
// times.
func checkRepeatedValueSizeLimit(times int, v any) error {
	size, err := valueSize(v)
	if err == nil && times > 0 && size > 64*maxValueSize/times {
		err = fmt.Errorf("a value of %d bytes is used %d times", size, times)
	}
	return err
}

// checkCopiedTextLengthLimit returns an error if a text would be longer than maxContentSize that consists of
// copies of copyLength bytes each, and of otherBytes bytes.
func checkCopiedTextLengthLimit(copies, copyLength, otherBytes int) error {
	if otherBytes > maxContentSize || copyLength > 0 && copies > (maxContentSize-otherBytes)/copyLength {
		return fmt.Errorf("a text of more than %d bytes", maxContentSize)
	}
	return nil
}

func checkIndentedTextLengthLimit(spaces int, s string) error {
	return checkCopiedTextLengthLimit(strings.Count(s, "\n")+1, max(0, spaces), len(s))
}

func checkReplacedTextLengthLimit(from, to, s string) error {
	n := strings.Count(s, from)
	return checkCopiedTextLengthLimit(n, len(to), max(0, len(s)-n*len(from)))
}

// checkSplitPartCountLimit returns an error if a text has too many parts.
func checkSplitPartCountLimit(s, separator string) error {
	return checkListLengthLimit(strings.Count(s, separator) + 1)
}

func checkListLengthLimit(n int) error {
	if n > maxTemplateBodyExecutions {
		return fmt.Errorf("a list of more than %d elements", maxTemplateBodyExecutions)
	}
	return nil
}

// checkTextLengthLimit returns s, or an error if s is longer than maxContentSize.
func checkTextLengthLimit(s string) (string, error) {
	if len(s) > maxContentSize {
		return "", fmt.Errorf("a text of more than %d bytes", maxContentSize)
	}
	return s, nil
}

// newLimitedPrintFunc returns a print function with a limit for the total size of its
// arguments.
func newLimitedPrintFunc(print func(...any) string) func(...any) (string, error) {
	return func(v ...any) (string, error) {
		if _, err := valueSize(v); err != nil {
			return "", err
		}
		return checkTextLengthLimit(print(v...))
	}
}

// limitedPrintf is printf with a limit for its output. It computes an upper limit
// from the format before it prints, because a format can request a million blanks
// many times.
func limitedPrintf(format string, v ...any) (string, error) {
	largest, err := valueSize(v)
	if err != nil {
		return "", err
	}
	const (
		escapedCharSize = 4       // maximum size of a quoted byte
		maxNumberSize   = 512     // maximum size of a number that is formatted without a width
		maxWidth        = 1 << 20 // maximum width that fmt accepts
	)
	maxLength, in := 0, false
	for i, n := 0, 0; i < len(format) && maxLength <= maxValueSize*escapedCharSize; i++ {
		switch c := format[i]; {
		case c == '%':
			in, n = !in, 0
			maxLength += maxNumberSize + largest*escapedCharSize
		case in && c == '*':
			maxLength += maxWidth
		case in && '0' <= c && c <= '9':
			n = min(10*n+int(c-'0'), maxWidth)
			continue
		case in && strings.IndexByte("+-# .[]", c) < 0:
			in = false
		}
		maxLength, n = maxLength+n, 0
	}
	if maxLength > maxValueSize*escapedCharSize {
		return "", fmt.Errorf("a text of more than %d bytes may come of it", maxContentSize)
	}
	return checkTextLengthLimit(fmt.Sprintf(format, v...))
}
