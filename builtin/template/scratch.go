package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// scratch is the template function scratch, which stores values during a
// rendering pass.
type scratch struct {
	values    map[string]any
	sizes     map[string]int
	totalSize int
}

// newScratch returns a function that always returns the same new scratch.
func newScratch() func() *scratch {
	s := &scratch{values: map[string]any{}, sizes: map[string]int{}}
	return func() *scratch { return s }
}

// Key reports whether a value with the name k is stored.
func (s *scratch) Key(k string) bool { _, ok := s.values[k]; return ok }

// Get returns the value with the name k, or nil.
func (s *scratch) Get(k string) any { return s.values[k] }

// Set stores a value, and returns "", because templates print results.
func (s *scratch) Set(k string, v any) (string, error) {
	w, err := valueSize(v)
	if err != nil {
		return "", err
	}
	if s.totalSize += w - s.sizes[k]; s.totalSize > maxValueSize {
		return "", fmt.Errorf("scratch holds more than %d bytes", maxValueSize)
	}
	s.values[k], s.sizes[k] = v, w
	return "", nil
}

// SetX is Set if no value with the name is stored.
func (s *scratch) SetX(k string, v any) (string, error) {
	if s.Key(k) {
		return "", nil
	}
	return s.Set(k, v)
}

// MapSet stores a value in a map. It copies the map, so that earlier results of
// Get do not change.
func (s *scratch) MapSet(k, mk string, v any) (string, error) {
	m, err := s.getMap(k)
	if err != nil {
		return "", err
	}
	if m = maps.Clone(m); m == nil {
		m = map[string]any{}
	}
	m[mk] = v
	return s.Set(k, m)
}

// MapSetX is MapSet if the map has no value for the key.
func (s *scratch) MapSetX(k, mk string, v any) (string, error) {
	if m, err := s.getMap(k); err == nil {
		if _, taken := m[mk]; taken {
			return "", nil
		}
	}
	return s.MapSet(k, mk, v)
}

// MapValues returns the values of a map in the order of their keys.
func (s *scratch) MapValues(k string) ([]any, error) {
	m, err := s.getMap(k)
	list := []any{}
	for _, key := range slices.SortedFunc(maps.Keys(m), cmp.Compare[string]) {
		list = append(list, m[key])
	}
	return list, err
}

func (s *scratch) getMap(k string) (map[string]any, error) {
	m, ok := s.values[k].(map[string]any)
	if s.values[k] != nil && !ok {
		return nil, fmt.Errorf("%q is no map", k)
	}
	return m, nil
}
