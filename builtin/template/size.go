package template

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// maxWeight limits each value that a template puts together, and what is printed
// at a time.
const maxWeight = 2 * maxSize

// weight is about what a value takes when it is written out. It refuses one that
// would take too much: a value that holds another one twice is short to make and,
// again and again, has no end when it is printed. Whatever puts values together
// asks for it, and no value is changed afterwards, so that none can hold itself.
func weight(v any) (int, error) {
	left := maxWeight
	err := checkSize(reflect.ValueOf(v), 0, &left)
	return maxWeight - left, err
}

// weighed is for functions that return what they have put together.
func weighed[T any](v T) (T, error) {
	_, err := weight(v)
	return v, err
}

// scalar is what each value weighs, besides its text.
const scalar = 8

var errScratch = errors.New("scratch is not a value: take what is in it with scratch.Get")

func checkSize(v reflect.Value, depth int, left *int) error {
	switch *left -= scalar; {
	case v.Kind() == reflect.String:
		*left -= v.Len()
	case v.Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[*scratch]():
		return errScratch
	}
	switch {
	case *left < 0:
		return fmt.Errorf("a value of more than %d bytes", maxWeight)
	case depth > maxDepth:
		return fmt.Errorf("a value that is nested more than %d deep", maxDepth)
	}
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			return checkSize(v.Elem(), depth, left)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := checkSize(v.Index(i), depth+1, left); err != nil {
				return err
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			for _, part := range []reflect.Value{entries.Key(), entries.Value()} {
				if err := checkSize(part, depth+1, left); err != nil {
					return err
				}
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if err := checkSize(v.Field(i), depth+1, left); err != nil {
				return err
			}
		}
	}
	return nil
}

// short refuses a text that has grown too long.
func short(s string) (string, error) {
	if len(s) > maxSize {
		return "", fmt.Errorf("a text of more than %d bytes", maxSize)
	}
	return s, nil
}

// printer prints any number of values of which all together are not too much.
func printer(print func(...any) string) func(...any) (string, error) {
	return func(v ...any) (string, error) {
		if _, err := weight(v); err != nil {
			return "", err
		}
		return short(print(v...))
	}
}

// printf looks at the format first: it may ask for a million blanks, and for each
// value many times.
func printf(format string, v ...any) (string, error) {
	heaviest, err := weight(v)
	if err != nil {
		return "", err
	}
	const (
		escaped = 4       // what quotes make of one byte, at most
		number  = 512     // what comes of a number without a width, at most
		widest  = 1 << 20 // what fmt takes for a width
	)
	most, in := 0, false
	for i, n := 0, 0; i < len(format) && most <= maxWeight*escaped; i++ {
		switch c := format[i]; {
		case c == '%':
			in, n = !in, 0
			most += number + heaviest*escaped
		case in && c == '*':
			most += widest
		case in && '0' <= c && c <= '9':
			n = min(10*n+int(c-'0'), widest)
			continue
		case in && strings.IndexByte("+-# .[]", c) < 0:
			in = false
		}
		most, n = most+n, 0
	}
	if most > maxWeight*escaped {
		return "", fmt.Errorf("a text of more than %d bytes may come of it", maxSize)
	}
	return short(fmt.Sprintf(format, v...))
}
