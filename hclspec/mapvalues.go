package hclspec

import (
	"reflect"
	"strings"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// untypedHandle decodes like codecHandle, and accepts all keys of maps.
var untypedHandle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.MapType = reflect.TypeFor[map[any]any]()
	return h
}()

// separateMapValues decodes the structs in the maps of dst again, each alone: the codec decodes all structs of a map into
// one variable, so that they share their slices, maps and pointers. b is what was decoded into dst.
func separateMapValues(b []byte, dst any) error {
	v := reflect.ValueOf(dst)
	if !v.IsValid() || !hasMapOfStructs(v.Type(), nil) {
		return nil
	}
	var untyped any
	if err := codec.NewDecoderBytes(b, untypedHandle).Decode(&untyped); err != nil {
		return err
	}
	return separateMapValuesOf(v, untyped)
}

// hasMapOfStructs reports whether values of the type can contain a map with structs.
func hasMapOfStructs(t reflect.Type, seen []reflect.Type) bool {
	for _, s := range seen {
		if s == t {
			return false
		}
	}
	seen = append(seen, t)
	switch t.Kind() {
	case reflect.Map:
		return t.Elem().Kind() == reflect.Struct || hasMapOfStructs(t.Elem(), seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return hasMapOfStructs(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if hasMapOfStructs(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

// separateMapValuesOf is separateMapValues for a part of a value. untyped is the part as it is in the input.
func separateMapValuesOf(v reflect.Value, untyped any) error {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return separateMapValuesOf(v.Elem(), untyped)
	case reflect.Slice, reflect.Array:
		list, _ := untyped.([]any)
		for i := range min(v.Len(), len(list)) {
			if err := separateMapValuesOf(v.Index(i), list[i]); err != nil {
				return err
			}
		}
	case reflect.Struct:
		fields, _ := untyped.(map[any]any)
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("codec"), ",")
			var err error
			switch {
			case field.Anonymous && name == "":
				err = separateMapValuesOf(v.Field(i), untyped)
			case !field.IsExported() || name == "-":
			case name == "":
				err = separateMapValuesOf(v.Field(i), fields[field.Name])
			default:
				err = separateMapValuesOf(v.Field(i), fields[name])
			}
			if err != nil {
				return err
			}
		}
	case reflect.Map:
		entries, _ := untyped.(map[any]any)
		for key, entry := range entries {
			k := reflect.ValueOf(key)
			if !k.IsValid() || !k.CanConvert(v.Type().Key()) {
				continue
			}
			k = k.Convert(v.Type().Key())
			old := v.MapIndex(k)
			if !old.IsValid() {
				continue
			}
			if v.Type().Elem().Kind() != reflect.Struct {
				if err := separateMapValuesOf(old, entry); err != nil {
					return err
				}
				continue
			}
			alone := reflect.New(v.Type().Elem())
			if entry != nil {
				encoded, err := MarshalState(entry)
				if err == nil {
					err = UnmarshalState(encoded, alone.Interface())
				}
				if err != nil {
					return err
				}
			}
			v.SetMapIndex(k, alone.Elem())
		}
	}
	return nil
}
