package hclspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// codecHandle is the msgpack codec for driver state and configs. It writes the old version of msgpack, which has neither
// str8 nor bin, and reads the old and the new version.
var codecHandle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.MapType = reflect.TypeFor[map[string]any]()
	h.TypeInfos = codec.NewTypeInfos([]string{"codec"})
	h.TimeNotBuiltin = true
	return h
}()

// Unmarshal decodes config bytes into the struct that dst points to. A field is matched
// by its codec tag, else by its exact name; unknown keys are ignored, and null resets
// the field. Empty input is io.EOF: a plugin with an optional config must check the
// length first.
//
// Unmarshal also accepts two kinds of values whose type differs from that of the field: a
// decimal text for a field with a number, because msgpack has no large numbers (block.Marshal), and a list of maps for
// a field with a map (Attr). If several of the maps have a key, the last value is used. For hosts only.
func Unmarshal(b []byte, dst any) error {
	err := UnmarshalState(b, dst)
	if err == nil || len(b) == 0 {
		return err
	}
	var untypedValue any
	if UnmarshalState(b, &untypedValue) != nil {
		return err
	}
	fitted, changed := convertToType(untypedValue, reflect.TypeOf(dst))
	if !changed {
		return err
	}
	again, encodeErr := MarshalState(fitted)
	if encodeErr != nil {
		return err
	}
	return UnmarshalState(again, dst)
}

// UnmarshalJSON decodes a config in JSON into dst, with the checks of UnmarshalExact. For hosts only.
func UnmarshalJSON(b []byte, dst any) error {
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.UseNumber()
	var config any
	if err := decoder.Decode(&config); err != nil {
		return err
	}
	encoded, err := MarshalState(convertJSONNumbers(config))
	if err != nil {
		return err
	}
	return UnmarshalExact(encoded, dst)
}

// convertJSONNumbers converts each json.Number to int64 or float64. A number that is too
// large for both is converted to its decimal text, as by block.Marshal.
func convertJSONNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	case []any:
		for i := range v {
			v[i] = convertJSONNumbers(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = convertJSONNumbers(v[key])
		}
	}
	return v
}

// MarshalState encodes the state of a driver for Handle.DriverState: in msgpack without
// str8 and bin, with structs as maps that are sorted by name. Only the same driver decodes the state. The
// encoding does not distinguish bytes from strings. For hosts only.
func MarshalState(v any) ([]byte, error) {
	var b []byte
	if err := codec.NewEncoderBytes(&b, codecHandle).Encode(v); err != nil {
		return nil, err
	}
	return b, nil
}

// UnmarshalState decodes the bytes of MarshalState into dst. It returns io.EOF for empty
// input. For hosts only.
func UnmarshalState(b []byte, dst any) error {
	if len(b) == 0 {
		return io.EOF // the decoder would not return io.EOF for a nil slice
	}
	if err := codec.NewDecoderBytes(b, codecHandle).Decode(dst); err != nil {
		return err
	}
	return separateMapValues(b, dst)
}

// convertToType converts the values in v that are of one of the two kinds that Unmarshal accepts for a field of another
// type; t is the type of the field for v. It reports whether it has converted a value.
func convertToType(v any, t reflect.Type) (any, bool) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || v == nil {
		return v, false
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if text, ok := v.(string); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				return n, true
			}
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if text, ok := v.(string); ok {
			if n, err := strconv.ParseUint(text, 10, 64); err == nil {
				return n, true
			}
		}
	case reflect.Float32, reflect.Float64:
		if text, ok := v.(string); ok {
			if n, err := strconv.ParseFloat(text, 64); err == nil || errors.Is(err, strconv.ErrRange) {
				return n, true
			}
		}
	case reflect.Slice, reflect.Array:
		return convertListElements(v, t.Elem())
	case reflect.Map:
		merged, changed := mergeMaps(v)
		m, ok := merged.(map[string]any)
		if !ok {
			return v, false
		}
		for key, value := range m {
			fitted, c := convertToType(value, t.Elem())
			m[key], changed = fitted, changed || c
		}
		return m, changed
	case reflect.Struct:
		m, ok := v.(map[string]any)
		return v, ok && convertStructFields(m, t)
	}
	return v, false
}

func convertListElements(v any, elem reflect.Type) (any, bool) {
	list, ok := v.([]any)
	changed := false
	for i := range list {
		fitted, c := convertToType(list[i], elem)
		list[i], changed = fitted, changed || c
	}
	return v, ok && changed
}

// mergeMaps merges a list of maps into one map.
func mergeMaps(v any) (any, bool) {
	list, ok := v.([]any)
	if !ok {
		return v, false
	}
	merged := map[string]any{}
	for _, elem := range list {
		m, ok := elem.(map[string]any)
		if !ok {
			return v, false
		}
		for key, value := range m {
			merged[key] = value
		}
	}
	return merged, true
}

func convertStructFields(m map[string]any, t reflect.Type) bool {
	changed := false
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("codec"), ",")
		if name == "-" {
			continue
		}
		if name == "" && field.Anonymous && field.Type.Kind() == reflect.Struct {
			changed = convertStructFields(m, field.Type) || changed
			continue
		}
		if name == "" {
			name = field.Name
		}
		if value, ok := m[name]; ok {
			fitted, c := convertToType(value, field.Type)
			m[name], changed = fitted, changed || c
		}
	}
	return changed
}
