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

// decodeFields is like decodeMsgpack, and also returns the fields of the payload that the type of v does not have, as paths
// like "handle.config.env".
func decodeFields(payload []byte, v any) (unknown []string, err error) {
	strictErr := decodeMsgpackWith(&strictDecoders, payload, v)
	if strictErr == nil {
		return nil, nil
	}
	resolved, unknown, err := resolveFields(reflect.TypeOf(v), payload)
	if err != nil {
		return nil, strictErr
	}
	reflect.ValueOf(v).Elem().SetZero()
	return unknown, decodeMsgpackWith(&decoders, resolved, v)
}

// resolveFields replaces former names of fields in a payload by the current names (see fieldAliases), and returns the paths of
// the fields that the type t does not have.
func resolveFields(t reflect.Type, payload []byte) (resolved []byte, unknown []string, err error) {
	r := fieldResolver{unknown: make(map[string]bool)}
	resolved, err = r.resolveValue(t, payload, "")
	return resolved, slices.Sorted(maps.Keys(r.unknown)), err
}

// fieldResolver is the state of one call of resolveFields.
type fieldResolver struct {
	unknown map[string]bool // paths of the fields that the type does not have
}

func (r *fieldResolver) resolveValue(t reflect.Type, value codec.Raw, path string) (codec.Raw, error) {
	switch {
	case isEncodedNil(value):
		return value, nil
	case t.Kind() == reflect.Pointer:
		return r.resolveValue(t.Elem(), value, path)
	case isStruct(t):
		return r.resolveStruct(t, value, path)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && containsStruct(t.Elem()):
		elements, err := decodeRawMap(value)
		if err != nil {
			return nil, err
		}
		for key, element := range elements {
			if elements[key], err = r.resolveValue(t.Elem(), element, path); err != nil {
				return nil, err
			}
		}
		return encodeMsgpack(elements)
	case t.Kind() == reflect.Slice && containsStruct(t.Elem()):
		elements, err := decodeRawList(value)
		if err != nil {
			return nil, err
		}
		for i, element := range elements {
			if elements[i], err = r.resolveValue(t.Elem(), element, path); err != nil {
				return nil, err
			}
		}
		return encodeMsgpack(elements)
	}
	return value, nil
}

func (r *fieldResolver) resolveStruct(t reflect.Type, value codec.Raw, path string) (codec.Raw, error) {
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
			r.unknown[at] = true
			resolved[name] = fieldValue
		} else if resolved[name], err = r.resolveValue(types[name], fieldValue, at); err != nil {
			return nil, err
		}
	}
	return encodeMsgpack(resolved)
}

// containsStruct reports whether the type is a struct, or a pointer, list or map of structs.
func containsStruct(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return containsStruct(t.Elem())
	}
	return isStruct(t)
}

// msgpackNil is the encoded form of nil.
var msgpackNil = codec.Raw{0xc0}

func isEncodedNil(value codec.Raw) bool { return bytes.Equal(value, msgpackNil) }

var errNoContainer = errors.New("value is neither a map nor a list")

// decodeRawMap returns the encoded values of an encoded map.
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

// decodeRawList returns the encoded elements of an encoded list.
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

// keepUnknownFields returns the payload next together with those fields of the stored payload that this build does not know.
// carried reports whether there are any. Both are payloads of the same type; zero points to a zero value of this type. An
// element of a list keeps its unknown fields only if its other fields are unchanged.
func keepUnknownFields(stored, next []byte, zero any) (payload []byte, carried bool, err error) {
	if len(stored) == 0 || len(next) == 0 || zero == nil {
		return next, false, nil
	}
	resolved, unknown, err := resolveFields(reflect.TypeOf(zero), stored)
	if err != nil || len(unknown) == 0 {
		return next, false, nil // an unreadable record has no fields to keep
	}
	if err := decodeMsgpackWith(&decoders, resolved, zero); err != nil {
		return next, false, nil
	}
	if s, ok := zero.(*api.TaskState); ok {
		zero = newTaskState(s)
	}
	known, err := encodeMsgpack(zero)
	if err != nil {
		return nil, false, err
	}
	payload, err = mergeUnknownFields(resolved, known, next)
	return payload, true, err
}

// mergeUnknownFields returns the value next together with the fields that stored has and known does not. All three are encoded.
// known is stored without the fields that this build does not know.
func mergeUnknownFields(stored, known, next codec.Raw) (codec.Raw, error) {
	if bytes.Equal(known, next) {
		return stored, nil
	}
	if s, k, n, ok := decodeThree(stored, known, next, decodeRawMap); ok {
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
	if s, k, n, ok := decodeThree(stored, known, next, decodeRawList); ok && len(s) == len(k) {
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

// UnknownPart is a field, record or table of the state that another build has written and this build does not know. The store
// keeps it.
type UnknownPart struct {
	Name        string // like `field handle.checkpoint of task_local`
	RecordCount int    // number of records with the part
}

func unknownFieldName(t Table, path string) string { return fmt.Sprintf("field %s of %s", path, t) }

// decodePublicTableRecord decodes the unencrypted part of a record of a public table. If the record has fields that this build
// does not know, later writes of the record keep them.
func (s *Store) decodePublicTableRecord(t Table, key string, payload []byte, v any) error {
	unknown, err := decodeFields(payload, v)
	if err != nil || len(unknown) == 0 {
		return err
	}
	for _, path := range unknown {
		s.countUnknownPart(unknownFieldName(t, path))
	}
	s.payloadsWithUnknownFields[recordKey{t, key}] = bytes.Clone(payload)
	return nil
}

// keepUnknownFieldsOf returns the payload of a record of a public table together with those fields of the stored record that
// this build does not know.
func (s *Store) keepUnknownFieldsOf(t Table, key string, payload []byte) ([]byte, error) {
	stored := s.payloadsWithUnknownFields[recordKey{t, key}]
	if stored == nil || payload == nil || t == Variables && payload[0] == envelopeFirstByte {
		return payload, nil // the open part of a sealed variable has the fields already
	}
	var zero any = new(api.Job)
	if t != jobBucket {
		zero = tableDefsByTable[t].newRecord(key)
	}
	payload, _, err := keepUnknownFields(stored, payload, zero)
	return payload, err
}

// countUnknownPart counts a record with a part that this build does not know. It returns true for the first record with the
// part.
func (s *Store) countUnknownPart(name string) (isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordCountByUnknownPart[name]++
	return s.recordCountByUnknownPart[name] == 1
}

func (s *Store) listUnknownParts() (parts []UnknownPart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.recordCountByUnknownPart)) {
		parts = append(parts, UnknownPart{name, s.recordCountByUnknownPart[name]})
	}
	return parts
}

// logUnknownParts logs the parts of the state that Open has found and that this build does not know, and adds one
// node event.
func (s *Store) logUnknownParts() {
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

// reportUnknownPart logs a part of a record that this build does not know, and adds a node event, unless it has reported the part
// before. It does not block, because a transaction may call it.
func (s *Store) reportUnknownPart(name string) {
	if !s.countUnknownPart(name) {
		return
	}
	s.logUnknownPart(name)
	_, _ = s.enqueue(func(tx *Txn) error { // fails only if the store is closed
		event := newUnknownPartEvent(name)
		if len(s.pendingNodeEvents) <= 2*maxNodeEvents {
			s.pendingNodeEvents = append(s.pendingNodeEvents, event) // for a node that is stored later
		}
		tx.addStorageEvent(event)
		return nil
	}, 0)
}
