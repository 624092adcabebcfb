package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/nomad/api"
)

// decodeAndListUnknownFields is like decodeMsgpack, and also returns the fields missing from the type of v, as paths like
// "handle.config.env".
func decodeAndListUnknownFields(payload []byte, v any) (unknownPaths []string, err error) {
	strictErr := decodeMsgpackWith(&strictDecoders, payload, v)
	if strictErr == nil {
		return nil, nil
	}
	resolved, unknownPaths, err := renameFieldsAndListUnknown(reflect.TypeOf(v), payload)
	if err != nil {
		return nil, strictErr
	}
	reflect.ValueOf(v).Elem().SetZero()
	return unknownPaths, decodeMsgpackWith(&decoders, resolved, v)
}

// renameFieldsAndListUnknown replaces a payload's former field names with the current names (see fieldAliases), and returns the
// paths of the fields missing from type t.
func renameFieldsAndListUnknown(t reflect.Type, payload []byte) (renamedPayload []byte, unknownPaths []string, err error) {
	r := fieldRenamer{unknownPaths: make(map[string]bool)}
	renamedPayload, err = r.renameFieldsInValue(t, payload, "")
	return renamedPayload, slices.Sorted(maps.Keys(r.unknownPaths)), err
}

// fieldRenamer is the state for one renameFieldsAndListUnknown call.
type fieldRenamer struct {
	unknownPaths map[string]bool // paths of the fields missing from the type
}

func (r *fieldRenamer) renameFieldsInValue(t reflect.Type, value codec.Raw, path string) (codec.Raw, error) {
	switch {
	case isEncodedNil(value):
		return value, nil
	case t.Kind() == reflect.Pointer:
		return r.renameFieldsInValue(t.Elem(), value, path)
	case isNonTimeStructOrPointerToIt(t):
		return r.renameFieldsInStruct(t, value, path)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && isStructOrContainerOfStructs(t.Elem()):
		elements, err := decodeRawMap(value)
		if err != nil {
			return nil, err
		}
		for key, element := range elements {
			if elements[key], err = r.renameFieldsInValue(t.Elem(), element, path); err != nil {
				return nil, err
			}
		}
		return encodeMsgpack(elements)
	case t.Kind() == reflect.Slice && isStructOrContainerOfStructs(t.Elem()):
		elements, err := decodeRawList(value)
		if err != nil {
			return nil, err
		}
		for i, element := range elements {
			if elements[i], err = r.renameFieldsInValue(t.Elem(), element, path); err != nil {
				return nil, err
			}
		}
		return encodeMsgpack(elements)
	}
	return value, nil
}

func (r *fieldRenamer) renameFieldsInStruct(t reflect.Type, value codec.Raw, path string) (codec.Raw, error) {
	values, err := decodeRawMap(value)
	if err != nil {
		return nil, err
	}
	types := make(map[string]reflect.Type)
	for _, f := range storedFields(t) {
		types[f.storedName] = f.goType
	}
	resolved := make(map[string]codec.Raw, len(values))
	for name, fieldValue := range values {
		if alias, ok := fieldAliases[t.String()+"."+name]; ok && types[name] == nil {
			if values[alias] != nil {
				continue // the record also has the field under its current name
			}
			name = alias
		}
		at := name
		if path != "" {
			at = path + "." + name
		}
		if types[name] == nil {
			r.unknownPaths[at] = true
			resolved[name] = fieldValue
		} else if resolved[name], err = r.renameFieldsInValue(types[name], fieldValue, at); err != nil {
			return nil, err
		}
	}
	return encodeMsgpack(resolved)
}

// isStructOrContainerOfStructs reports whether the type is a struct, or a pointer, list or map of structs.
func isStructOrContainerOfStructs(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return isStructOrContainerOfStructs(t.Elem())
	}
	return isNonTimeStructOrPointerToIt(t)
}

// msgpackNil is the encoded nil.
var msgpackNil = codec.Raw{0xc0}

func isEncodedNil(value codec.Raw) bool { return bytes.Equal(value, msgpackNil) }

var errNoContainer = errors.New("value is neither a map nor a list")

// decodeRawMap returns an encoded map's encoded values.
func decodeRawMap(value codec.Raw) (map[string]codec.Raw, error) {
	var values map[string]codec.Raw
	if err := decodeMsgpackWith(&decoders, value, &values); err != nil {
		return nil, err
	}
	if values == nil {
		return nil, errNoContainer
	}
	for key, v := range values {
		if len(v) == 0 { // the decoder returns nil for an encoded nil
			values[key] = msgpackNil
		}
	}
	return values, nil
}

// decodeRawList returns an encoded list's encoded elements.
func decodeRawList(value codec.Raw) ([]codec.Raw, error) {
	var elements []codec.Raw
	if err := decodeMsgpackWith(&decoders, value, &elements); err != nil {
		return nil, err
	}
	if elements == nil {
		return nil, errNoContainer
	}
	for i, v := range elements {
		if len(v) == 0 {
			elements[i] = msgpackNil
		}
	}
	return elements, nil
}

// keepUnknownFields returns the payload next together with the stored payload's fields unknown to this build. keptAny reports
// whether there are any. Both payloads have the same type; zeroRecord points to its zero value. A list element keeps its
// unknown fields only if its other fields are unchanged.
func keepUnknownFields(stored, next []byte, zeroRecord any) (payload []byte, keptAny bool, err error) {
	if len(stored) == 0 || len(next) == 0 || zeroRecord == nil {
		return next, false, nil
	}
	resolved, unknown, err := renameFieldsAndListUnknown(reflect.TypeOf(zeroRecord), stored)
	if err != nil || len(unknown) == 0 {
		return next, false, nil // an unreadable record has no fields to keep
	}
	if err := decodeMsgpackWith(&decoders, resolved, zeroRecord); err != nil {
		return next, false, nil
	}
	switch r := zeroRecord.(type) {
	case *api.TaskState:
		zeroRecord = newTaskStateRecord(r)
	case *allocationRecord:
		zeroRecord = newWrittenAllocationRecord(r)
	}
	known, err := encodeMsgpack(zeroRecord)
	if err != nil {
		return nil, false, err
	}
	payload, err = mergeUnknownFields(resolved, known, next)
	return payload, true, err
}

// mergeUnknownFields returns the value next together with the fields that stored has and storedKnownPart does not. All three
// are encoded. storedKnownPart is stored without the fields unknown to this build.
func mergeUnknownFields(stored, storedKnownPart, next codec.Raw) (codec.Raw, error) {
	if bytes.Equal(storedKnownPart, next) {
		return stored, nil
	}
	if s, k, n, ok := decodeThree(stored, storedKnownPart, next, decodeRawMap); ok {
		for name, value := range s {
			_, isKnown := k[name]
			_, isNext := n[name]
			switch {
			case isKnown && isNext:
				var err error
				if n[name], err = mergeUnknownFields(value, k[name], n[name]); err != nil {
					return nil, err
				}
			case !isKnown && !isNext:
				n[name] = value
			}
		}
		return encodeMsgpack(n)
	}
	if s, k, n, ok := decodeThree(stored, storedKnownPart, next, decodeRawList); ok && len(s) == len(k) {
		for i, element := range n {
			if j := slices.IndexFunc(k, func(other codec.Raw) bool { return bytes.Equal(other, element) }); j >= 0 {
				n[i] = s[j]
			}
		}
		return encodeMsgpack(n)
	}
	return next, nil
}

func decodeThree[T any](a, b, c codec.Raw, decode func(codec.Raw) (T, error)) (x, y, z T, ok bool) {
	x, errX := decode(a)
	y, errY := decode(b)
	z, errZ := decode(c)
	return x, y, z, errors.Join(errX, errY, errZ) == nil
}

// UnknownPart is a field, record or table in the state that another build has written and this build does not know. The store
// keeps it.
type UnknownPart struct {
	Name        string // like `field handle.checkpoint of task_local`
	RecordCount int    // how many records have the part
}

func unknownFieldName(t Table, path string) string { return fmt.Sprintf("field %s of %s", path, t) }

// keepPayloadWithUnknownFields remembers the unencrypted part of a public record with fields unknown to this build, so that
// later writes keep them.
func (s *Store) keepPayloadWithUnknownFields(t Table, key string, payload []byte, unknownFields []string) {
	if len(unknownFields) == 0 {
		return
	}
	for _, path := range unknownFields {
		s.countUnknownPart(unknownFieldName(t, path))
	}
	s.payloadsWithUnknownFields[recordKey{t, key}] = bytes.Clone(payload)
}

// keepUnknownFieldsOf returns a public table record's payload together with the stored record's fields unknown to this build.
func (s *Store) keepUnknownFieldsOf(t Table, key string, payload []byte) ([]byte, error) {
	stored := s.payloadsWithUnknownFields[recordKey{t, key}]
	if stored == nil || payload == nil || tablesWithSecrets[t] && payload[0] == envelopeFirstByte {
		return payload, nil // a sealed record's unencrypted part has the fields already
	}
	var zero any = new(api.Job)
	if t != jobBucket {
		zero = tableDefsByTable[t].newZeroRecord(key)
	}
	payload, _, err := keepUnknownFields(stored, payload, zero)
	return payload, err
}

// countUnknownPart counts a record with a part unknown to this build. It returns true for the first record with the part.
func (s *Store) countUnknownPart(name string) (isNew bool) {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	s.recordCountByUnknownPart[name]++
	return s.recordCountByUnknownPart[name] == 1
}

func (s *Store) listUnknownParts() (parts []UnknownPart) {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.recordCountByUnknownPart)) {
		parts = append(parts, UnknownPart{name, s.recordCountByUnknownPart[name]})
	}
	return parts
}

// reportAllUnknownParts logs the state parts found by Open and unknown to this build, and adds one node event.
func (s *Store) reportAllUnknownParts() {
	parts := s.listUnknownParts()
	if len(parts) == 0 {
		return
	}
	for _, p := range parts {
		s.logUnknownPart(p.Name)
	}
	event := newUnknownPartEvent(parts[0].Name)
	if n := len(parts) - 1; n > 0 {
		event.Message += fmt.Sprintf(" (and %d more, see the log)", n)
	}
	s.pendingNodeEvents = append(s.pendingNodeEvents, event)
}

func (s *Store) logUnknownPart(name string) {
	s.logger.Warn("state has an unsupported part, which is kept", "part", name)
}

func newUnknownPartEvent(name string) *api.NodeEvent {
	return &api.NodeEvent{
		Message: "State has an unsupported part, which is kept: " + name, Subsystem: "Storage", Timestamp: time.Now(),
	}
}

// reportUnknownPartOnce logs a record part unknown to this build, and adds a node event, unless it has reported the part
// before. It does not block, because a transaction may call it.
func (s *Store) reportUnknownPartOnce(name string) {
	if !s.countUnknownPart(name) {
		return
	}
	s.logUnknownPart(name)
	_, _ = s.enqueue(func(tx *Txn) error { // fails only if the store is closed
		event := newUnknownPartEvent(name)
		if len(s.pendingNodeEvents) <= 2*maxNodeEvents {
			s.pendingNodeEvents = append(s.pendingNodeEvents, event) // for a node that is stored later
		}
		tx.addNodeEvent(event)
		return nil
	}, 0)
}
