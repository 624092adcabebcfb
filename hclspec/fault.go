package hclspec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Fault returns an error if the structure of the Spec of a whole block is invalid. It is for authors
// of plugins, and does not parse the expressions of types and literals: block.Fault does. A nil Spec
// is valid.
func (s *Spec) Fault() error {
	switch {
	case s == nil:
		return nil
	case s.kind != KindObject:
		return errors.New("it is no Object, whose parts have names")
	}
	return s.faultAt("config", "", MaxDepth)
}

// faultAt returns the error of a part of the Spec. path is the position of the part, for errors; key is the name of the
// part if the part has no name itself; depth is the maximum number of levels.
func (s *Spec) faultAt(path, key string, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%q: it is nested deeper than %d levels", path, MaxDepth)
	}
	if s == nil {
		return fmt.Errorf("%q: it is nil", path)
	}
	switch s.kind {
	case KindNone:
		return fmt.Errorf("%q: it is neither argument nor block nor literal", path)
	case KindObject:
		for _, key := range slices.Sorted(maps.Keys(s.attributes)) {
			if err := s.attributes[key].faultAt(path+"."+key, key, depth-1); err != nil {
				return err
			}
		}
		return nil
	case KindArray:
		for i, value := range s.values {
			if err := value.faultAt(fmt.Sprintf("%s[%d]", path, i), "", depth-1); err != nil {
				return err
			}
		}
		return nil
	case KindLiteral:
		return nil
	case KindDefault:
		if err := s.nested.faultAt(path, "", depth-1); err != nil {
			return err
		}
		return s.defaultSpec.faultAt(path, "", depth-1)
	}
	if s.name == "" && key == "" {
		return fmt.Errorf("%q: an argument or a block of it has no name", path)
	}
	switch s.kind {
	case KindBlockMap:
		if len(s.labels) == 0 {
			return fmt.Errorf("%q: a BlockMap has no labels", path)
		}
		fallthrough
	case KindBlock, KindBlockList, KindBlockSet:
		return s.nested.faultAt(path, "", depth-1)
	}
	return nil
}
