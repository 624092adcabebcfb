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

// decodeFields is decode. It also returns the fields of the payload that the type of v lacks, which are skipped, as
// paths like "handle.config.env".
func decodeFields(payload []byte, v any) (unknown []string, err error) {
	strictErr := decodeWith(&strictDecoders, payload, v)
	if strictErr == nil {
		return nil, nil
	}
	resolved, unknown, err := resolveFields(reflect.TypeOf(v), payload)
	if err != nil {
		return nil, strictErr
	}
	reflect.ValueOf(v).Elem().SetZero()
	return unknown, decodeWith(&decoders, resolved, v)
}

// resolveFields returns the payload of a value with the present names of its fields in place of former ones, and the
// fields that the type lacks.
func resolveFields(t reflect.Type, payload []byte) (resolved []byte, unknown []string, err error) {
	r := fieldResolver{unknown: make(map[string]bool)}
	resolved, err = r.resolve(t, payload, "")
	return resolved, slices.Sorted(maps.Keys(r.unknown)), err
}

// fieldResolver compares the fields of encoded values with types.
type fieldResolver struct {
	unknown map[string]bool // paths of fields that the types lack
}

func (r *fieldResolver) resolve(t reflect.Type, value codec.Raw, path string) (codec.Raw, error) {
	switch {
	case isNil(value):
		return value, nil
	case t.Kind() == reflect.Pointer:
		return r.resolve(t.Elem(), value, path)
	case isStruct(t):
		return r.resolveStruct(t, value, path)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && containsStruct(t.Elem()):
		elements, err := decodeRawMap(value)
		if err != nil {
			return nil, err
		}
		for key, element := range elements {
			if elements[key], err = r.resolve(t.Elem(), element, path); err != nil {
				return nil, err
			}
		}
		return encode(elements)
	case t.Kind() == reflect.Slice && containsStruct(t.Elem()):
		elements, err := decodeRawList(value)
		if err != nil {
			return nil, err
		}
		for i, element := range elements {
			if elements[i], err = r.resolve(t.Elem(), element, path); err != nil {
				return nil, err
			}
		}
		return encode(elements)
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
		types[f.name] = f.typ
	}
	resolved := make(map[string]codec.Raw, len(values))
	for name, fieldValue := range values {
		if alias, ok := fieldAliases[t.String()+"."+name]; ok && types[name] == nil {
			if values[alias] != nil {
				continue // the record has the value also under its present name
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
		} else if resolved[name], err = r.resolve(types[name], fieldValue, at); err != nil {
			return nil, err
		}
	}
	return encode(resolved)
}

// containsStruct reports whether values of the type are structs or have them as elements.
func containsStruct(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return containsStruct(t.Elem())
	}
	return isStruct(t)
}

// msgpackNil is the encoded form of nil.
var msgpackNil = codec.Raw{0xc0}

func isNil(value codec.Raw) bool { return bytes.Equal(value, msgpackNil) }

var errNoContainer = errors.New("value is neither a map nor a list")

// decodeRawMap returns the encoded values of an encoded map.
func decodeRawMap(value codec.Raw) (map[string]codec.Raw, error) {
	var values map[string]codec.Raw
	if err := decodeWith(&decoders, value, &values); err != nil {
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
	if err := decodeWith(&decoders, value, &elements); err != nil {
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

// carryUnknownFields returns the payload next with the fields of the stored payload that this build does not know, and
// whether there are any. Both are payloads of values of one type; zero points to a zero value of it. An element of a
// list keeps these fields if its other fields are unchanged.
func carryUnknownFields(stored, next []byte, zero any) (payload []byte, carried bool, err error) {
	if len(stored) == 0 || len(next) == 0 || zero == nil {
		return next, false, nil
	}
	resolved, unknown, err := resolveFields(reflect.TypeOf(zero), stored)
	if err != nil || len(unknown) == 0 {
		return next, false, nil // an unreadable record has no fields to keep
	}
	if err := decodeWith(&decoders, resolved, zero); err != nil {
		return next, false, nil
	}
	if s, ok := zero.(*api.TaskState); ok {
		zero = newTaskState(s)
	}
	known, err := encode(zero)
	if err != nil {
		return nil, false, err
	}
	payload, err = mergeUnknown(resolved, known, next)
	return payload, true, err
}

// mergeUnknown returns the value next with the fields that are in stored and not in known. All three are encoded: known is
// the value of stored without the fields that this build does not know.
func mergeUnknown(stored, known, next codec.Raw) (codec.Raw, error) {
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
				if n[name], err = mergeUnknown(value, k[name], n[name]); err != nil {
					return nil, err
				}
			case !isKnown && !isNext:
				n[name] = value
			}
		}
		return encode(n)
	}
	if s, k, n, ok := decodeThree(stored, known, next, decodeRawList); ok && len(s) == len(k) {
		for i, element := range n {
			if j := slices.IndexFunc(k, func(other codec.Raw) bool { return bytes.Equal(other, element) }); j >= 0 {
				n[i] = s[j]
			}
		}
		return encode(n)
	}
	return next, nil
}

func decodeThree[T any](a, b, c codec.Raw, decode func(codec.Raw) (T, error)) (x, y, z T, ok bool) {
	x, errX := decode(a)
	y, errY := decode(b)
	z, errZ := decode(c)
	return x, y, z, errors.Join(errX, errY, errZ) == nil
}

// UnknownPart is a part of the state that this build does not know. It is kept.
type UnknownPart struct {
	Name    string // like `field handle.checkpoint of task_local`
	Records int    // number of records with the part
}

func unknownField(t Table, path string) string { return fmt.Sprintf("field %s of %s", path, t) }

// decodePublic decodes the open part of a record that is not in a local table. If the record has fields that this build does
// not know, the store keeps them.
func (s *Store) decodePublic(t Table, key string, payload []byte, v any) error {
	unknown, err := decodeFields(payload, v)
	if err != nil || len(unknown) == 0 {
		return err
	}
	for _, path := range unknown {
		s.addUnknown(unknownField(t, path))
	}
	s.unknownFields[recordKey{t, key}] = bytes.Clone(payload)
	return nil
}

// carryUnknown returns the payload of a record in a public table with the fields of the record in the file that this
// build does not know.
func (s *Store) carryUnknown(t Table, key string, payload []byte) ([]byte, error) {
	stored := s.unknownFields[recordKey{t, key}]
	if stored == nil || payload == nil || t == Variables && payload[0] == envelopeFirstByte {
		return payload, nil // the open part of a sealed variable has the fields already
	}
	var zero any = new(api.Job)
	if t != jobBucket {
		zero = tableDefsByTable[t].newRecord(key)
	}
	payload, _, err := carryUnknownFields(stored, payload, zero)
	return payload, err
}

// addUnknown counts a record with a part that this build does not know. It reports whether the part is new.
func (s *Store) addUnknown(name string) (isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unknownParts[name]++
	return s.unknownParts[name] == 1
}

func (s *Store) listUnknownParts() (parts []UnknownPart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.unknownParts)) {
		parts = append(parts, UnknownPart{name, s.unknownParts[name]})
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
		s.logUnknown(p.Name)
	}
	event := newUnknownEvent(parts[0].Name)
	if n := len(parts) - 1; n > 0 {
		event.Message += fmt.Sprintf(" (and %d more, see the log)", n)
	}
	s.nodeEvents = append(s.nodeEvents, event)
}

func (s *Store) logUnknown(name string) {
	s.logger.Warn("state has an unsupported part, which is kept", "part", name)
}

func newUnknownEvent(name string) *api.NodeEvent {
	return &api.NodeEvent{
		Message: "State has an unsupported part, which is kept: " + name, Subsystem: "Storage", Timestamp: time.Now(),
	}
}

// reportUnknown reports a part of a record that this build does not know, unless the part was reported before. It does not
// block, because a transaction may call it.
func (s *Store) reportUnknown(name string) {
	if !s.addUnknown(name) {
		return
	}
	s.logUnknown(name)
	_, _ = s.enqueue(func(tx *Txn) error { // fails only if the store is closed
		event := newUnknownEvent(name)
		if len(s.nodeEvents) <= 2*maxNodeEvents {
			s.nodeEvents = append(s.nodeEvents, event) // for a node that is stored later
		}
		tx.addStorageEvent(event)
		return nil
	}, 0)
}
