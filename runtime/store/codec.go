package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// msgpack writes every field of a struct under its Go name: the tags of the API
// types, which leave things out, are for somebody else. What a newer build has
// added to a type is skipped, and lost when the record is written again.
var msgpack = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true} // bytes are bytes, strings are strings, times are times
	h.Canonical = true                        // the same value is the same bytes
	h.RawToString = true
	h.SignedInteger = true
	h.MapType = reflect.TypeFor[map[string]any]()
	h.SliceType = reflect.TypeFor[[]any]()
	h.MapValueReset = true
	h.SliceElementReset = true
	h.MaxInitLen = 1 << 10 // a damaged length is not believed
	h.MaxDepth = 200
	h.TypeInfos = codec.NewTypeInfos([]string{"store"})
	return h
}()

// encoder is one that has a buffer already: for a record, most of what a new one
// would allocate is a buffer that grows.
type encoder struct {
	codec  *codec.Encoder
	buffer []byte
}

var encoders = sync.Pool{New: func() any {
	e := &encoder{buffer: make([]byte, 0, 4<<10)}
	e.codec = codec.NewEncoderBytes(&e.buffer, msgpack)
	return e
}}

// encode returns bytes without room to grow: many of them stay.
func encode(v any) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.codec.ResetBytes(&e.buffer)
	if err := e.codec.Encode(v); err != nil {
		return nil, err // and who knows what is left in e
	}
	defer encoders.Put(e)
	return bytes.Clone(e.buffer), nil
}

var decoders = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, msgpack) }}

// decode fills v, a pointer, which must be zero.
func decode(payload []byte, v any) error {
	d := decoders.Get().(*codec.Decoder)
	d.ResetBytes(payload)
	if err := d.Decode(v); err != nil {
		return err // and who knows what is left in d
	}
	d.ResetBytes(nil)
	decoders.Put(d)
	restoreInts(reflect.ValueOf(v))
	return nil
}

// restoreInts gives the whole numbers in values of type any the type that they
// had: job files and JSON make int and float64, msgpack makes int64.
func restoreInts(v reflect.Value) {
	if !holdsAny(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		if i, ok := v.Interface().(int64); ok {
			v.Set(reflect.ValueOf(int(i)))
		} else if !v.IsNil() {
			restoreInts(v.Elem())
		}
	case reflect.Pointer:
		if !v.IsNil() {
			restoreInts(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				restoreInts(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			restoreInts(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			element := reflect.New(v.Type().Elem()).Elem() // what lies in a map cannot be set
			element.Set(v.MapIndex(key))
			restoreInts(element)
			v.SetMapIndex(key, element)
		}
	}
}

// anyTypes remembers the answers of holdsAny.
var anyTypes sync.Map

// holdsAny reports whether a value of the type can hold one of type any.
func holdsAny(t reflect.Type) bool {
	if known, ok := anyTypes.Load(t); ok {
		return known.(bool)
	}
	result := findAny(t, make(map[reflect.Type]bool))
	anyTypes.Store(t, result)
	return result
}

func findAny(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return findAny(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && findAny(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// hasStructMap reports whether the type is one that the decoder of go-msgpack gets
// wrong: the struct values of a map get parts of each other.
func hasStructMap(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return hasStructMap(t.Elem(), seen)
	case reflect.Map:
		return t.Elem().Kind() == reflect.Struct || hasStructMap(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && hasStructMap(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// A record in the file is
//
//	schema version (1) · CRC-32C (4) · index of the change (8) · payload
//
// with big-endian numbers. The checksum covers the bucket, the key and all of
// the record besides itself: a record that lies under a wrong key does not read.
const (
	schemaVersion = 1
	headerSize    = 1 + 4 + 8
)

// record is what lies under a key in the file.
type record struct {
	schema  byte
	index   uint64
	payload []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(bucket, key string, schema byte, index, payload []byte) uint32 {
	h := crc32.New(castagnoli)
	h.Write([]byte(bucket))
	h.Write([]byte{0})
	h.Write([]byte(key))
	h.Write([]byte{0, schema})
	h.Write(index)
	h.Write(payload)
	return h.Sum32()
}

// encodeRecord makes the bytes of a record.
func encodeRecord(bucket, key string, index uint64, payload []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(payload))
	b[0] = schemaVersion
	binary.BigEndian.PutUint64(b[5:], index)
	binary.BigEndian.PutUint32(b[1:], sum(bucket, key, b[0], b[5:], payload))
	return append(b, payload...)
}

var (
	errShort    = errors.New("record is too short")
	errChecksum = errors.New("checksum does not match")
)

// decodeRecord checks the bytes of a record. The payload is part of b.
func decodeRecord(bucket, key string, b []byte) (record, error) {
	if len(b) < headerSize {
		return record{}, errShort
	}
	r := record{schema: b[0], index: binary.BigEndian.Uint64(b[5:]), payload: b[headerSize:]}
	if sum(bucket, key, r.schema, b[5:headerSize], r.payload) != binary.BigEndian.Uint32(b[1:]) {
		return record{}, errChecksum
	}
	if r.schema != schemaVersion {
		return r, &SchemaError{Have: r.schema}
	}
	return r, nil
}

// SchemaError means that a record is whole, but of a schema version that this
// build does not know.
type SchemaError struct{ Have byte }

func (e *SchemaError) Error() string {
	return fmt.Sprintf("record has schema version %d, this build reads %d", e.Have, schemaVersion)
}
