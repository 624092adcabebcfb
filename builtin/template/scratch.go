package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// scratch is the value of the template function scratch. It stores values by name during a
// rendering pass.
type scratch struct {
	valueByName map[string]any
	sizeByName  map[string]int
	totalSize   int
}

// newScratchFunc makes a scratch, and returns the template function that returns this scratch in
// each call.
func newScratchFunc() func() *scratch {
	s := &scratch{valueByName: map[string]any{}, sizeByName: map[string]int{}}
	return func() *scratch { return s }
}

// Key reports whether a value is stored under the name.
func (s *scratch) Key(name string) bool { _, ok := s.valueByName[name]; return ok }

// Get returns the value that is stored under the name, or nil.
func (s *scratch) Get(name string) any { return s.valueByName[name] }

// Set stores a value, and returns "", because templates print results.
func (s *scratch) Set(name string, v any) (string, error) {
	size, err := valueSize(v)
	if err != nil {
		return "", err
	}
	if s.totalSize += size - s.sizeByName[name]; s.totalSize > maxValueSize {
		return "", fmt.Errorf("scratch holds more than %d bytes", maxValueSize)
	}
	s.valueByName[name], s.sizeByName[name] = v, size
	return "", nil
}

// SetX stores a value like Set, unless a value is already stored under the name.
func (s *scratch) SetX(name string, v any) (string, error) {
	if s.Key(name) {
		return "", nil
	}
	return s.Set(name, v)
}

// MapSet stores a value in a map. It copies the map, so that earlier results of
// Get do not change.
func (s *scratch) MapSet(name, mapKey string, v any) (string, error) {
	m, err := s.getMap(name)
	if err != nil {
		return "", err
	}
	if m = maps.Clone(m); m == nil {
		m = map[string]any{}
	}
	m[mapKey] = v
	return s.Set(name, m)
}

// MapSetX stores a value like MapSet, unless the map already has a value for the key.
func (s *scratch) MapSetX(name, mapKey string, v any) (string, error) {
	if m, err := s.getMap(name); err == nil {
		if _, taken := m[mapKey]; taken {
			return "", nil
		}
	}
	return s.MapSet(name, mapKey, v)
}

// MapValues returns the values of a map in the order of their keys.
func (s *scratch) MapValues(name string) ([]any, error) {
	m, err := s.getMap(name)
	list := []any{}
	for _, key := range slices.SortedFunc(maps.Keys(m), cmp.Compare[string]) {
		list = append(list, m[key])
	}
	return list, err
}

func (s *scratch) getMap(name string) (map[string]any, error) {
	m, ok := s.valueByName[name].(map[string]any)
	if s.valueByName[name] != nil && !ok {
		return nil, fmt.Errorf("%q is no map", name)
	}
	return m, nil
}
