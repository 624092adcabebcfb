package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// randomFiller fills values with random content: at depth 0 every pointer, list and map is nil, at depth 1
// all are set but have zero or empty content, below depth 1 they have content.
type randomFiller struct {
	*rand.Rand
	depthChoices []int
}

func (f randomFiller) randomChoice() int { return f.depthChoices[f.IntN(len(f.depthChoices))] }

func (f randomFiller) fillValue(v reflect.Value, depth int) {
	choice := f.randomChoice()
	if depth > 12 {
		choice = 0
	}
	switch v.Interface().(type) {
	case time.Time:
		if choice > 0 {
			v.Set(reflect.ValueOf(time.Unix(f.Int64N(4e9)-2e9, f.Int64N(1e9)).UTC()))
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(choice > 1)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if choice > 1 {
			v.SetInt(int64(f.Uint64()) >> (64 - v.Type().Bits()))
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if choice > 1 {
			v.SetUint(f.Uint64() >> (64 - v.Type().Bits()))
		}
	case reflect.Float32, reflect.Float64:
		if choice > 1 {
			v.SetFloat(float64(f.IntN(100)) / 2)
		}
	case reflect.String:
		if choice > 1 {
			v.SetString(fmt.Sprintf("größe-%d", f.IntN(1000)))
		}
	case reflect.Pointer:
		if choice > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fillValue(v.Elem(), depth+1)
			if at, ok := v.Interface().(*time.Time); ok && at.IsZero() {
				v.SetZero() // a zero time is stored like none
			}
		}
	case reflect.Slice:
		if choice > 0 {
			v.Set(reflect.MakeSlice(v.Type(), choice-1, choice-1))
			for i := range v.Len() {
				f.fillValue(v.Index(i), depth+1)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			f.fillValue(v.Index(i), depth+1)
		}
	case reflect.Map:
		if choice > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range choice - 1 {
				key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				f.fillValue(key, depth+1)
				f.fillValue(element, depth+1)
				v.SetMapIndex(key, element)
			}
		}
	case reflect.Interface: // types that job files and JSON decode to
		values := []any{nil, true, 5, -3, 5.0, 0.5, "x", "", []any{1, "a", nil}, []any{}, map[string]any{"k": 1, "m": map[string]any{"f": 2.0}}}
		if x := values[f.IntN(len(values))]; x != nil {
			v.Set(reflect.ValueOf(x))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fillValue(v.Field(i), depth+1)
			}
		}
	default:
		panic("a value of type " + v.Type().String() + " cannot be stored")
	}
}

func TestEncodeDecodeRoundTrip(t *testing.T) {
	for _, zero := range storedTypes() {
		typ := reflect.TypeOf(zero)
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			for seed, choices := range [][]int{{0}, {1}, {2}, {3}, {0, 2}, {0, 1, 2}, {0, 1, 2, 3}, {0, 0, 1, 2, 3}} {
				f := randomFiller{rand.New(rand.NewPCG(uint64(seed), 1)), choices}
				want := reflect.New(typ)
				f.fillValue(want.Elem(), 0)
				payload, err := encodeMsgpack(want.Interface())
				if err != nil {
					t.Fatal(err)
				}
				got := reflect.New(typ)
				if err := decodeMsgpack(payload, got.Interface()); err != nil {
					t.Fatalf("choices %v: %v", choices, err)
				}
				if !reflect.DeepEqual(got.Interface(), want.Interface()) {
					t.Fatalf("choices %v: %s", choices, firstDifference(typ.Name(), got.Elem(), want.Elem()))
				}
				again, err := encodeMsgpack(got.Interface())
				if err != nil || !bytes.Equal(again, payload) {
					t.Errorf("choices %v: other bytes at the second time (%v)", choices, err)
				}
			}
		})
	}
}

func TestStoredTypesHaveNoMapOfStructs(t *testing.T) {
	for _, record := range storedRecords() {
		if field := findStructMap(record.Type, record.Type.String(), nil); field != "" {
			t.Errorf("the record %q has a map with structs: %s. go-msgpack decodes the values of such a map with shared slices, maps and pointers: use pointers to structs as values", record.Name, field)
		}
	}
}

func TestMapsOfStructsAreFound(t *testing.T) {
	type value struct{ Items []string }
	type Embedded struct{ Deep []*map[string]value }
	type embedded struct{ Inner map[string][2]value }
	for _, tt := range []struct {
		zero any
		want string
	}{
		{struct{ A map[string]*value }{}, ""},
		{struct{ A map[string]value }{}, "r.A"},
		{struct{ Embedded }{}, "r.Embedded.Deep"},
		{struct{ embedded }{}, "r.embedded.Inner"}, // the codec encodes an embedded struct's exported fields
		{map[string][]map[string]value{}, "r"},
		{struct{ a map[string]value }{}, ""}, // the codec ignores the field
	} {
		if got := findStructMap(reflect.TypeOf(tt.zero), "r", nil); got != tt.want {
			t.Errorf("%T: map at %q, want %q", tt.zero, got, tt.want)
		}
	}
}

// findStructMap returns the path of the type's first stored field that has a map with structs, or "" if there is none. path is
// the type's path, and seen has the structs that contain it.
func findStructMap(t reflect.Type, path string, seen []reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return findStructMap(t.Elem(), path, seen)
	case reflect.Map:
		value := t.Elem()
		for value.Kind() == reflect.Array {
			value = value.Elem()
		}
		if value.Kind() == reflect.Struct {
			return path
		}
		return findStructMap(value, path, seen)
	case reflect.Struct:
		if slices.Contains(seen, t) {
			return ""
		}
		seen = append(slices.Clip(seen), t)
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() && !f.Anonymous {
				continue
			}
			if found := findStructMap(f.Type, path+"."+f.Name, seen); found != "" {
				return found
			}
		}
	}
	return ""
}

// firstDifference returns the path of the first field that differs in two values.
func firstDifference(path string, got, want reflect.Value) string {
	if got.Kind() == want.Kind() && got.IsValid() {
		switch got.Kind() {
		case reflect.Struct:
			for i := range got.NumField() {
				if f := got.Type().Field(i); f.IsExported() && !reflect.DeepEqual(got.Field(i).Interface(), want.Field(i).Interface()) {
					return firstDifference(path+"."+f.Name, got.Field(i), want.Field(i))
				}
			}
		case reflect.Pointer, reflect.Interface:
			if !got.IsNil() && !want.IsNil() {
				return firstDifference(path, got.Elem(), want.Elem())
			}
		case reflect.Slice:
			for i := range min(got.Len(), want.Len()) {
				if !reflect.DeepEqual(got.Index(i).Interface(), want.Index(i).Interface()) {
					return firstDifference(fmt.Sprintf("%s[%d]", path, i), got.Index(i), want.Index(i))
				}
			}
		case reflect.Map:
			for _, key := range want.MapKeys() {
				if g := got.MapIndex(key); g.IsValid() && !reflect.DeepEqual(g.Interface(), want.MapIndex(key).Interface()) {
					return firstDifference(fmt.Sprintf("%s[%v]", path, key), g, want.MapIndex(key))
				}
			}
		}
	}
	return fmt.Sprintf("%s: got %#v, want %#v", path, got, want)
}

// newerRecord is a later release's record type, olderRecord is the type for the same record in this release.
type newerRecord struct {
	ID    string
	Added map[string]any
	Count int64
}

type olderRecord struct {
	Count int64
	ID    string
	Gone  string
}

func TestDecodeIgnoresUnknownFields(t *testing.T) {
	payload, err := encodeMsgpack(newerRecord{"a", map[string]any{"x": []any{1, map[string]any{"y": 2.5}}}, 7})
	if err != nil {
		t.Fatal(err)
	}
	var got olderRecord
	if err := decodeMsgpack(payload, &got); err != nil || got != (olderRecord{Count: 7, ID: "a"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestRecordChecksumCoversTableAndKey(t *testing.T) {
	good := encodeRecord("jobs", "default\x00a", 7, []byte("payload"))
	if r, err := decodeRecord("jobs", "default\x00a", good); err != nil || r.changeIndex != 7 || string(r.payload) != "payload" {
		t.Fatalf("got %+v, %v", r, err)
	}
	if _, err := decodeRecord("jobs", "default\x00b", good); !errors.Is(err, errChecksum) {
		t.Errorf("other key: %v", err)
	}
	if _, err := decodeRecord("variables", "default\x00a", good); !errors.Is(err, errChecksum) {
		t.Errorf("other table: %v", err)
	}
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := decodeRecord("jobs", "default\x00a", bad); err == nil {
			t.Errorf("bit %d changed, and nobody saw it", i)
		}
	}
	for n := range good {
		if _, err := decodeRecord("jobs", "default\x00a", good[:n]); err == nil {
			t.Errorf("cut to %d bytes, and nobody saw it", n)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for i, zero := range storedTypes() {
		v := reflect.New(reflect.TypeOf(zero))
		randomFiller{rand.New(rand.NewPCG(1, 1)), []int{0, 2}}.fillValue(v.Elem(), 6)
		payload, err := encodeMsgpack(v.Interface())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), payload)
	}
	f.Add(uint8(0), bytes.Repeat([]byte{0x91}, 100_000)) // nested lists
	f.Add(uint8(0), []byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Add(uint8(0), []byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	types := storedTypes()
	f.Fuzz(func(t *testing.T, which uint8, payload []byte) {
		typ := reflect.TypeOf(types[int(which)%len(types)])
		v := reflect.New(typ)
		if decodeMsgpack(payload, v.Interface()) != nil {
			return
		}
		again, err := encodeMsgpack(v.Interface())
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		second := reflect.New(typ)
		if err := decodeMsgpack(again, second.Interface()); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(encodeRecord("jobs", "a", 1, []byte("x")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord("jobs", "a", b)
		if err == nil && !bytes.Equal(encodeRecord("jobs", "a", r.changeIndex, r.payload), b) {
			t.Errorf("other bytes at the second time: %x", b)
		}
	})
}
