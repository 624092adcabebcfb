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

// msgpackFormat encodes every struct field under the name in its tag "store", and without the tag under its Go name, because
// the other struct tags of the API types omit fields.
var msgpackFormat = newMsgpackHandle()

// strictFormat is msgpackFormat, but decoding a field missing from the type is an error.
var strictFormat = func() *codec.MsgpackHandle {
	h := newMsgpackHandle()
	h.ErrorIfNoField = true
	return h
}()

func newMsgpackHandle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true} // WriteExt distinguishes bytes, strings and times
	h.Raw = true
	h.Canonical = true // Canonical encodes equal values to equal bytes
	h.RawToString = true
	h.SignedInteger = true
	h.MapType = reflect.TypeFor[map[string]any]()
	h.SliceType = reflect.TypeFor[[]any]()
	h.MapValueReset = true
	h.SliceElementReset = true
	h.MaxInitLen = 1 << 10 // MaxInitLen limits the memory allocated because of a damaged length
	h.MaxDepth = 200
	h.TypeInfos = storeTypeInfos
	return h
}

var storeTypeInfos = codec.NewTypeInfos([]string{"store"})

// pooledEncoder is a codec.Encoder with a reusable buffer: a new encoder's growing buffer takes most of the memory for a
// record.
type pooledEncoder struct {
	encoder *codec.Encoder
	buffer  []byte
}

var encoderPool = sync.Pool{New: func() any {
	e := &pooledEncoder{buffer: make([]byte, 0, 4<<10)}
	e.encoder = codec.NewEncoderBytes(&e.buffer, msgpackFormat)
	return e
}}

// encodeMsgpack returns the encoded value. The slice has no spare capacity, because the store keeps many of them in memory.
func encodeMsgpack(v any) ([]byte, error) {
	e := encoderPool.Get().(*pooledEncoder)
	e.encoder.ResetBytes(&e.buffer)
	if err := e.encoder.Encode(v); err != nil {
		return nil, err // e is not reused: its state is undefined after an error
	}
	defer encoderPool.Put(e)
	return bytes.Clone(e.buffer), nil
}

var (
	decoders       = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, msgpackFormat) }}
	strictDecoders = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, strictFormat) }}
)

// decodeMsgpack decodes payload into the value that v points to, which must be zero. It ignores fields missing from v's type.
func decodeMsgpack(payload []byte, v any) error {
	_, err := decodeAndListUnknownFields(payload, v)
	return err
}

func decodeMsgpackWith(decoderPool *sync.Pool, payload []byte, v any) error {
	d := decoderPool.Get().(*codec.Decoder)
	d.ResetBytes(payload)
	if err := d.Decode(v); err != nil {
		return err // d is not reused: its state is undefined after an error
	}
	d.ResetBytes(nil)
	decoderPool.Put(d)
	convertInt64sInAnyToInts(reflect.ValueOf(v))
	return nil
}

// convertInt64sInAnyToInts replaces each int64 in a field or element with type any by an int: msgpack decodes integers to
// int64, but the rest of the program expects int, as from job files.
func convertInt64sInAnyToInts(v reflect.Value) {
	if !typeContainsInterface(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		if i, ok := v.Interface().(int64); ok {
			v.Set(reflect.ValueOf(int(i)))
		} else if !v.IsNil() {
			convertInt64sInAnyToInts(v.Elem())
		}
	case reflect.Pointer:
		if !v.IsNil() {
			convertInt64sInAnyToInts(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				convertInt64sInAnyToInts(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			convertInt64sInAnyToInts(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			element := reflect.New(v.Type().Elem()).Elem() // values in a map are not addressable
			element.Set(v.MapIndex(key))
			convertInt64sInAnyToInts(element)
			v.SetMapIndex(key, element)
		}
	}
}

// containsAnyCache caches typeContainsInterface's results.
var containsAnyCache sync.Map

// typeContainsInterface reports whether a value of the type can contain an any value.
func typeContainsInterface(t reflect.Type) bool {
	if known, ok := containsAnyCache.Load(t); ok {
		return known.(bool)
	}
	result := typeContainsInterfaceUncached(t, make(map[reflect.Type]bool))
	containsAnyCache.Store(t, result)
	return result
}

func typeContainsInterfaceUncached(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return typeContainsInterfaceUncached(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && typeContainsInterfaceUncached(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// A record's bytes in the file are
//
//	schema version (1) · CRC-32C (4) · index of the change (8) · payload
//
// with big-endian numbers. The checksum covers the bucket, the key and the whole record except the checksum, so it does not
// match for a record under a wrong key.
const (
	schemaVersion = 1
	headerSize    = 1 + 4 + 8
)

// fileRecord is the decoded form of a record's bytes in the file.
type fileRecord struct {
	schema      byte
	changeIndex uint64
	payload     []byte
}

var crc32cTable = crc32.MakeTable(crc32.Castagnoli)

func recordChecksum(bucket, key string, schema byte, index, payload []byte) uint32 {
	h := crc32.New(crc32cTable)
	h.Write([]byte(bucket))
	h.Write([]byte{0})
	h.Write([]byte(key))
	h.Write([]byte{0, schema})
	h.Write(index)
	h.Write(payload)
	return h.Sum32()
}

// encodeRecord returns a record's bytes in the file.
func encodeRecord(bucket, key string, index uint64, payload []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(payload))
	b[0] = schemaVersion
	binary.BigEndian.PutUint64(b[5:], index)
	binary.BigEndian.PutUint32(b[1:], recordChecksum(bucket, key, b[0], b[5:], payload))
	return append(b, payload...)
}

var (
	errRecordTooShort = errors.New("record is too short")
	errChecksum       = errors.New("checksum does not match")
)

// decodeRecord parses a record's bytes in the file and verifies its checksum. The payload shares b's memory.
func decodeRecord(bucket, key string, b []byte) (fileRecord, error) {
	if len(b) < headerSize {
		return fileRecord{}, errRecordTooShort
	}
	r := fileRecord{schema: b[0], changeIndex: binary.BigEndian.Uint64(b[5:]), payload: b[headerSize:]}
	if recordChecksum(bucket, key, r.schema, b[5:headerSize], r.payload) != binary.BigEndian.Uint32(b[1:]) {
		return fileRecord{}, errChecksum
	}
	if r.schema != schemaVersion {
		return r, &UnsupportedSchemaError{FoundVersion: r.schema}
	}
	return r, nil
}

// UnsupportedSchemaError: a record is intact, but this build does not support its schema version.
type UnsupportedSchemaError struct{ FoundVersion byte }

func (e *UnsupportedSchemaError) Error() string {
	return fmt.Sprintf("record has schema version %d, this build reads %d", e.FoundVersion, schemaVersion)
}
