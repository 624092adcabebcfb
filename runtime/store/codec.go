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

// msgpackFormat encodes every field of a struct under the name in its tag "store", and without the tag under its Go
// name, because the other struct tags of the API types omit fields.
var msgpackFormat = newMsgpackFormat()

// strictFormat is msgpackFormat, but decoding a field that the type lacks is an error.
var strictFormat = func() *codec.MsgpackHandle {
	h := newMsgpackFormat()
	h.ErrorIfNoField = true
	return h
}()

func newMsgpackFormat() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true} // WriteExt distinguishes bytes, strings and times
	h.Raw = true
	h.Canonical = true // Canonical encodes equal values to equal bytes
	h.RawToString = true
	h.SignedInteger = true
	h.MapType = reflect.TypeFor[map[string]any]()
	h.SliceType = reflect.TypeFor[[]any]()
	h.MapValueReset = true
	h.SliceElementReset = true
	h.MaxInitLen = 1 << 10 // MaxInitLen limits the memory that is allocated because of a damaged length
	h.MaxDepth = 200
	h.TypeInfos = storeTypeInfos
	return h
}

var storeTypeInfos = codec.NewTypeInfos([]string{"store"})

// pooledEncoder is a codec.Encoder with a reusable buffer: most of the memory that a new encoder
// allocates for a record is a growing buffer.
type pooledEncoder struct {
	codec  *codec.Encoder
	buffer []byte
}

var encoderPool = sync.Pool{New: func() any {
	e := &pooledEncoder{buffer: make([]byte, 0, 4<<10)}
	e.codec = codec.NewEncoderBytes(&e.buffer, msgpackFormat)
	return e
}}

// encode returns the encoded value in a slice without spare capacity, because many of these slices stay in
// memory.
func encode(v any) ([]byte, error) {
	e := encoderPool.Get().(*pooledEncoder)
	e.codec.ResetBytes(&e.buffer)
	if err := e.codec.Encode(v); err != nil {
		return nil, err // e is not reused: its state is undefined after an error
	}
	defer encoderPool.Put(e)
	return bytes.Clone(e.buffer), nil
}

var (
	decoders       = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, msgpackFormat) }}
	strictDecoders = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, strictFormat) }}
)

// decode decodes payload into the value that v points to, which must be zero.
func decode(payload []byte, v any) error {
	_, err := decodeFields(payload, v)
	return err
}

func decodeWith(pool *sync.Pool, payload []byte, v any) error {
	d := pool.Get().(*codec.Decoder)
	d.ResetBytes(payload)
	if err := d.Decode(v); err != nil {
		return err // d is not reused: its state is undefined after an error
	}
	d.ResetBytes(nil)
	pool.Put(d)
	restoreInts(reflect.ValueOf(v))
	return nil
}

// restoreInts converts int64 in values of type any back to int: job files and JSON
// decode to int and float64, msgpack decodes to int64.
func restoreInts(v reflect.Value) {
	if !containsAny(v.Type()) {
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
			element := reflect.New(v.Type().Elem()).Elem() // values in a map are not addressable
			element.Set(v.MapIndex(key))
			restoreInts(element)
			v.SetMapIndex(key, element)
		}
	}
}

// containsAnyCache caches the results of containsAny.
var containsAnyCache sync.Map

// containsAny reports whether a value of the type can contain a value of type any.
func containsAny(t reflect.Type) bool {
	if known, ok := containsAnyCache.Load(t); ok {
		return known.(bool)
	}
	result := searchAnyType(t, make(map[reflect.Type]bool))
	containsAnyCache.Store(t, result)
	return result
}

func searchAnyType(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return searchAnyType(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && searchAnyType(f.Type, seen) {
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
// with big-endian numbers. The checksum covers the bucket, the key and the whole record
// except itself: a record under a wrong key fails its checksum.
const (
	schemaVersion = 1
	headerSize    = 1 + 4 + 8
)

// fileRecord is the decoded form of a record's bytes in the file.
type fileRecord struct {
	schema  byte
	index   uint64
	payload []byte
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

// encodeRecord returns the bytes of a record.
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

// decodeRecord parses a record and verifies its checksum. The payload is a part of b.
func decodeRecord(bucket, key string, b []byte) (fileRecord, error) {
	if len(b) < headerSize {
		return fileRecord{}, errRecordTooShort
	}
	r := fileRecord{schema: b[0], index: binary.BigEndian.Uint64(b[5:]), payload: b[headerSize:]}
	if recordChecksum(bucket, key, r.schema, b[5:headerSize], r.payload) != binary.BigEndian.Uint32(b[1:]) {
		return fileRecord{}, errChecksum
	}
	if r.schema != schemaVersion {
		return r, &SchemaError{FoundVersion: r.schema}
	}
	return r, nil
}

// SchemaError means that a record is intact, but has a schema version that this build
// does not support.
type SchemaError struct{ FoundVersion byte }

func (e *SchemaError) Error() string {
	return fmt.Sprintf("record has schema version %d, this build reads %d", e.FoundVersion, schemaVersion)
}
