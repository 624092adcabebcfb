package hclspec

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
)

// MaxDepth is the maximum nesting depth of specs. The specs of existing drivers have a
// depth below ten; without the limit, a plugin could overflow the host's stack.
const MaxDepth = 100

// Spec is the schema of a config block or of a part of it, and of the resulting value. It
// is created by the functions of this package and is immutable, so it may be shared. A nil
// Spec means that the plugin has no configuration.
type Spec struct {
	kind          Kind
	name          string // name of the part in the block; empty means the part's key in the enclosing Object
	typeOrLiteral string // HCL expression of the type, or of the literal
	required      bool
	labels        []string
	min, max      uint64

	nested      *Spec // content of a block, or primary part of a default
	defaultSpec *Spec
	attributes  map[string]*Spec
	values      []*Spec

	cache atomic.Pointer[any] // result of Cached; nil before the first call
}

// Kind is the kind of a Spec.
type Kind uint8

// KindNone is the kind of a Spec from a message that has no kind. Each of the other kinds has a
// function of its name.
const (
	KindNone Kind = iota
	KindObject
	KindArray
	KindAttr
	KindBlock
	KindBlockAttrs
	KindBlockList
	KindBlockSet
	KindBlockMap
	KindDefault
	KindLiteral
)

// Object is a body with several parts. Each schema of a whole block is an Object. The keys
// are the names in the result. They are also the names in the block, except for parts with
// their own name.
func Object(attributes map[string]*Spec) *Spec {
	return &Spec{kind: KindObject, attributes: maps.Clone(attributes)}
}

// Array is a body with several parts, whose values form a sequence in the result. Each part
// needs a name.
func Array(values ...*Spec) *Spec {
	return &Spec{kind: KindArray, values: slices.Clone(values)}
}

// Attr is an argument, `name = value`. Its type is an expression: string, number, bool,
// any, list(T), set(T), map(T), tuple([T, ...]), object({name = T}). If the argument is
// absent, the value is null; if it is also required, that is an error.
//
// A map type cannot be written in a job file, where {...} arrives as a list with one
// object: use list(map(T)) or BlockAttrs.
func Attr(name, typ string, required bool) *Spec {
	return &Spec{kind: KindAttr, name: name, typeOrLiteral: typ, required: required}
}

// Block is at most one block, `name { … }`, whose content is described by nested. If the
// block is absent, the value is null.
func Block(name string, nested *Spec, required bool) *Spec {
	return &Spec{kind: KindBlock, name: name, nested: nested, required: required}
}

// BlockAttrs is at most one block, `name { key = value … }`, whose arguments may have any
// name and have one type. Its value is a map. If the block is absent, the value is null.
func BlockAttrs(name, typ string, required bool) *Spec {
	return &Spec{kind: KindBlockAttrs, name: name, typeOrLiteral: typ, required: required}
}

// BlockList is min to max blocks, and its value a list in their order; a max of 0 means no
// limit. If there is no block, the value is an empty list.
func BlockList(name string, nested *Spec, min, max uint64) *Spec {
	return &Spec{kind: KindBlockList, name: name, nested: nested, min: min, max: max}
}

// BlockSet is a BlockList whose value is a set, without order and duplicates.
func BlockSet(name string, nested *Spec, min, max uint64) *Spec {
	return &Spec{kind: KindBlockSet, name: name, nested: nested, min: min, max: max}
}

// BlockMap is any number of blocks, `name "label" { … }`, with one label for each element
// of labels, at least one. Its value is a map by label, which is empty if there is no
// block.
func BlockMap(name string, labels []string, nested *Spec) *Spec {
	return &Spec{kind: KindBlockMap, name: name, labels: slices.Clone(labels), nested: nested}
}

// Default has the value of primary, or of def if the value of primary is null. Both need a
// name if their kind has one: Default(Attr("retries", "number", false), Literal("3")).
func Default(primary, def *Spec) *Spec {
	return &Spec{kind: KindDefault, nested: primary, defaultSpec: def}
}

// Literal is a constant, written as an HCL expression: `"text"`, `5`, `["a"]`.
func Literal(expr string) *Spec {
	return &Spec{kind: KindLiteral, typeOrLiteral: expr}
}

// Node is a Spec without its parts, as the functions that create a Spec have received it. Fields
// that a kind does not have are zero.
type Node struct {
	Kind       Kind
	Name       string // empty means the key in the enclosing Object
	Expression string // HCL expression of the type, or of the literal
	Required   bool
	Labels     []string
	Min, Max   uint64

	Nested     *Spec // content of a block, or primary part of a default
	Default    *Spec
	Attributes map[string]*Spec
	Values     []*Spec
}

// Node returns the fields of s, for packages that convert a Spec. The caller must not change them.
// The Node of a nil Spec has the kind KindNone.
func (s *Spec) Node() Node {
	if s == nil {
		return Node{}
	}
	return Node{s.kind, s.name, s.typeOrLiteral, s.required, s.labels, s.min, s.max, s.nested, s.defaultSpec, s.attributes, s.values}
}

// Cached returns the result of compute, or of an earlier call: package block compiles each Spec once.
// It may be called concurrently, and then calls compute more than once. The Spec must not be nil.
func (s *Spec) Cached(compute func() any) any {
	if v := s.cache.Load(); v != nil {
		return *v
	}
	v := compute()
	s.cache.Store(&v)
	return v
}

// FromProto converts the message of a plugin, which may be invalid: Decode reports most
// errors. FromProto only returns an error if the message nests too deeply. A nil
// message is a nil Spec.
func FromProto(p *specpb.Spec) (*Spec, error) {
	return fromProto(p, MaxDepth)
}

func fromProto(p *specpb.Spec, depth int) (*Spec, error) {
	if p == nil {
		return nil, nil
	}
	if depth == 0 {
		return nil, fmt.Errorf("spec is nested deeper than %d levels", MaxDepth)
	}

	s := &Spec{}
	var err error
	switch b := p.GetBlock().(type) {
	case *specpb.Spec_Object:
		s.kind, s.attributes = KindObject, make(map[string]*Spec, len(b.Object.GetAttributes()))
		for key, part := range b.Object.GetAttributes() {
			if s.attributes[key], err = fromProto(part, depth-1); err != nil {
				return nil, err
			}
		}
	case *specpb.Spec_Array:
		s.kind, s.values = KindArray, make([]*Spec, len(b.Array.GetValues()))
		for i, part := range b.Array.GetValues() {
			if s.values[i], err = fromProto(part, depth-1); err != nil {
				return nil, err
			}
		}
	case *specpb.Spec_Attr:
		s.kind, s.name, s.typeOrLiteral, s.required = KindAttr, b.Attr.GetName(), b.Attr.GetType(), b.Attr.GetRequired()
	case *specpb.Spec_BlockValue:
		s.kind, s.name, s.required = KindBlock, b.BlockValue.GetName(), b.BlockValue.GetRequired()
		s.nested, err = fromProto(b.BlockValue.GetNested(), depth-1)
	case *specpb.Spec_BlockAttrs:
		s.kind, s.name, s.typeOrLiteral, s.required = KindBlockAttrs, b.BlockAttrs.GetName(), b.BlockAttrs.GetType(), b.BlockAttrs.GetRequired()
	case *specpb.Spec_BlockList:
		s.kind, s.name, s.min, s.max = KindBlockList, b.BlockList.GetName(), b.BlockList.GetMinItems(), b.BlockList.GetMaxItems()
		s.nested, err = fromProto(b.BlockList.GetNested(), depth-1)
	case *specpb.Spec_BlockSet:
		s.kind, s.name, s.min, s.max = KindBlockSet, b.BlockSet.GetName(), b.BlockSet.GetMinItems(), b.BlockSet.GetMaxItems()
		s.nested, err = fromProto(b.BlockSet.GetNested(), depth-1)
	case *specpb.Spec_BlockMap:
		s.kind, s.name, s.labels = KindBlockMap, b.BlockMap.GetName(), slices.Clone(b.BlockMap.GetLabels())
		s.nested, err = fromProto(b.BlockMap.GetNested(), depth-1)
	case *specpb.Spec_Default:
		s.kind = KindDefault
		if s.nested, err = fromProto(b.Default.GetPrimary(), depth-1); err == nil {
			s.defaultSpec, err = fromProto(b.Default.GetDefault(), depth-1)
		}
	case *specpb.Spec_Literal:
		s.kind, s.typeOrLiteral = KindLiteral, b.Literal.GetValue()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Proto returns the message for s. For a nil Spec the message is nil.
func (s *Spec) Proto() *specpb.Spec {
	if s == nil {
		return nil
	}
	switch s.kind {
	case KindObject:
		attributes := make(map[string]*specpb.Spec, len(s.attributes))
		for key, part := range s.attributes {
			attributes[key] = part.Proto()
		}
		return &specpb.Spec{Block: &specpb.Spec_Object{Object: &specpb.Object{Attributes: attributes}}}
	case KindArray:
		values := make([]*specpb.Spec, len(s.values))
		for i, part := range s.values {
			values[i] = part.Proto()
		}
		return &specpb.Spec{Block: &specpb.Spec_Array{Array: &specpb.Array{Values: values}}}
	case KindAttr:
		return &specpb.Spec{Block: &specpb.Spec_Attr{Attr: &specpb.Attr{Name: s.name, Type: s.typeOrLiteral, Required: s.required}}}
	case KindBlock:
		return &specpb.Spec{Block: &specpb.Spec_BlockValue{BlockValue: &specpb.Block{Name: s.name, Required: s.required, Nested: s.nested.Proto()}}}
	case KindBlockAttrs:
		return &specpb.Spec{Block: &specpb.Spec_BlockAttrs{BlockAttrs: &specpb.BlockAttrs{Name: s.name, Type: s.typeOrLiteral, Required: s.required}}}
	case KindBlockList:
		return &specpb.Spec{Block: &specpb.Spec_BlockList{BlockList: &specpb.BlockList{Name: s.name, MinItems: s.min, MaxItems: s.max, Nested: s.nested.Proto()}}}
	case KindBlockSet:
		return &specpb.Spec{Block: &specpb.Spec_BlockSet{BlockSet: &specpb.BlockSet{Name: s.name, MinItems: s.min, MaxItems: s.max, Nested: s.nested.Proto()}}}
	case KindBlockMap:
		return &specpb.Spec{Block: &specpb.Spec_BlockMap{BlockMap: &specpb.BlockMap{Name: s.name, Labels: s.labels, Nested: s.nested.Proto()}}}
	case KindDefault:
		return &specpb.Spec{Block: &specpb.Spec_Default{Default: &specpb.Default{Primary: s.nested.Proto(), Default: s.defaultSpec.Proto()}}}
	case KindLiteral:
		return &specpb.Spec{Block: &specpb.Spec_Literal{Literal: &specpb.Literal{Value: s.typeOrLiteral}}}
	default:
		return &specpb.Spec{}
	}
}
