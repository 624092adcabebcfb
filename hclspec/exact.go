package hclspec

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// UnmarshalExact decodes like Unmarshal, but rejects input that Unmarshal would not decode
// completely: a key for which a struct has no field, or a value that does not fit its
// field. The error names both, and dst is unchanged. For hosts only.
func UnmarshalExact(b []byte, dst any) error {
	t := reflect.TypeOf(dst)
	if t == nil || t.Kind() != reflect.Pointer || len(b) == 0 {
		return Unmarshal(b, dst)
	}
	var untypedValue any
	if err := UnmarshalState(b, &untypedValue); err != nil {
		return err
	}
	untypedValue, _ = convertToType(untypedValue, t)
	if err := checkFitsType(nil, untypedValue, t.Elem()); err != nil {
		return err
	}
	return Unmarshal(b, dst)
}

// customDecoderTypes are interfaces of types with their own decoder. checkFitsType does not
// check values for such types.
var customDecoderTypes = []reflect.Type{
	reflect.TypeFor[codec.Selfer](), reflect.TypeFor[encoding.BinaryUnmarshaler](),
}

// checkFitsType returns an error if decoding the value v into type t would fail or lose data.
// path is the position of v in the config.
func checkFitsType(path []string, v any, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil || t.Kind() == reflect.Interface ||
		slices.ContainsFunc(customDecoderTypes, func(own reflect.Type) bool { return reflect.PointerTo(t).Implements(own) }) {
		return nil
	}
	does := func(fits bool) error {
		if fits {
			return nil
		}
		if word := describeBasicType(t); word != "" {
			return fmt.Errorf("%s is %s, and must be %s", formatPath(path), describeValueForType(v, t), word)
		}
		return fmt.Errorf("%s is %s, which does not fit %s", formatPath(path), describeValue(v), describeType(t))
	}
	switch t.Kind() {
	case reflect.Bool:
		_, ok := v.(bool)
		return does(ok)
	case reflect.String:
		return does(isStringOrBytes(v))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := toInt64(v)
		return does(ok && !reflect.Zero(t).OverflowInt(n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, ok := toUint64(v)
		return does(ok && !reflect.Zero(t).OverflowUint(n))
	case reflect.Float32, reflect.Float64:
		switch v.(type) {
		case int64, uint64, float32, float64:
			return nil
		}
		return does(false)
	case reflect.Slice, reflect.Array:
		if isStringOrBytes(v) && t.Elem().Kind() == reflect.Uint8 {
			return nil
		}
		list, ok := v.([]any)
		if !ok || t.Kind() == reflect.Array && len(list) > t.Len() {
			return does(false)
		}
		for i, elem := range list {
			if err := checkFitsType(append(path, strconv.Itoa(i)), elem, t.Elem()); err != nil {
				return err
			}
		}
		return nil
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return does(false)
		}
		for _, key := range sortedKeys(m) {
			if err := checkFitsType(append(path, key), m[key], t.Elem()); err != nil {
				return err
			}
		}
		return nil
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			return does(false)
		}
		fields := fieldTypes(t)
		for _, key := range sortedKeys(m) {
			field, ok := fields[key]
			if !ok {
				return fmt.Errorf("%s has no field in %s: add one with the tag `codec:%q`", formatPath(append(path, key)), describeType(t), key)
			}
			if err := checkFitsType(append(path, key), m[key], field); err != nil {
				return err
			}
		}
		return nil
	}
	return does(false)
}

// fieldTypes returns the types of a struct's fields, by the key that the decoder matches
// with the field.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("codec"), ",")
		embedded := field.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		switch {
		case name == "-":
		case name == "" && field.Anonymous && embedded.Kind() == reflect.Struct:
			for key, deeper := range fieldTypes(embedded) {
				if _, nearer := fields[key]; !nearer {
					fields[key] = deeper
				}
			}
		case !field.IsExported():
		case name == "":
			fields[field.Name] = field.Type
		default:
			fields[name] = field.Type
		}
	}
	return fields
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func formatPath(path []string) string {
	if len(path) == 0 {
		return "the config"
	}
	return strconv.Quote(strings.Join(path, "."))
}

// describeBasicType describes the values of a type in words, because the users of jobs see the error. It returns "" for a type
// without such words.
func describeBasicType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Int8, reflect.Int16, reflect.Int32:
		return fmt.Sprintf("a whole number from -%d to %d", uint64(1)<<(t.Bits()-1), uint64(1)<<(t.Bits()-1)-1)
	case reflect.Uint, reflect.Uint64:
		return "a whole number that is not negative"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(1)<<t.Bits()-1)
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return ""
}

// describeValueForType is describeValue for a value that does not fit t. A number that is neither a 64-bit integer nor
// exactly a float64 arrives as its decimal text.
func describeValueForType(v any, t reflect.Type) string {
	if text, ok := v.(string); ok && t.Kind() != reflect.Bool && t.Kind() != reflect.String {
		if _, err := strconv.ParseFloat(text, 64); err == nil || errors.Is(err, strconv.ErrRange) {
			return "a number with a fraction or too many digits"
		}
	}
	return describeValue(v)
}

func describeType(t reflect.Type) string {
	if t.Kind() == reflect.Struct && t.Name() == "" {
		return "the Go struct" // %v would print the whole declaration of an anonymous type
	}
	return fmt.Sprintf("the Go type %v", t)
}

func isStringOrBytes(v any) bool {
	switch v.(type) {
	case string, []byte:
		return true
	}
	return false
}

func toInt64(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= math.MaxInt64
	}
	return 0, false
}

func toUint64(v any) (uint64, bool) {
	switch n := v.(type) {
	case int64:
		return uint64(n), n >= 0
	case uint64:
		return n, true
	}
	return 0, false
}

// describeValue describes a value without its content, which may be a secret.
func describeValue(v any) string {
	switch v := v.(type) {
	case bool:
		return "a bool"
	case int64, uint64:
		return fmt.Sprintf("the number %d", v)
	case float32, float64:
		return fmt.Sprintf("the number %v", v)
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "a string"
}
