package hclspec

import (
	"maps"
	"slices"
	"sync/atomic"
)

// MaxDepth is the maximum nesting depth of specs. The specs of existing drivers have a
// depth below ten; without the limit, a plugin could overflow the host's stack. For hosts only.
const MaxDepth = 100

// Spec is the schema of a config block or of a part of it, and of the resulting value. It
// is created by the functions of this package and is immutable, so it may be shared. A nil
// Spec as the schema of a whole block means that the block is not allowed, or must be empty; a
// part of a Spec must not be nil.
type Spec struct {
	kind                 Kind
	name                 string // name of the part in the block; empty means the part's key in the enclosing Object
	typeOrLiteral        string // HCL expression of the type, or of the literal
	required             bool
	labels               []string
	minBlocks, maxBlocks uint64

	nested      *Spec // content of a block, or primary part of a default
	defaultSpec *Spec
	attributes  map[string]*Spec
	values      []*Spec

	cache atomic.Pointer[any] // result of Cached; nil before the first call
}

// Kind is the kind of a Spec. For hosts only.
type Kind uint8

// KindNone is the kind of the zero Spec, which stands for a message without a kind. Each of the other
// kinds has a function of its name. For hosts only.
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

// Object is a body with several parts: the content of the config block, or of a block in it. Each
// schema of a whole block is an Object. A key is the name of the value in the result, and so the tag
// `codec` of its field; the name of the part is the name in the block. A part with an
// empty name has the name of its key.
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
// absent, the value is null, which leaves the zero value in the field; if it is also required,
// that is an error.
//
// A map type cannot be written in a job file, where {...} arrives as a list with one
// object: use list(map(T)), whose field can be a map, or BlockAttrs.
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
	return &Spec{kind: KindBlockList, name: name, nested: nested, minBlocks: min, maxBlocks: max}
}

// BlockSet is a BlockList whose value is a set, without order and duplicates.
func BlockSet(name string, nested *Spec, min, max uint64) *Spec {
	return &Spec{kind: KindBlockSet, name: name, nested: nested, minBlocks: min, maxBlocks: max}
}

// BlockMap is any number of blocks, `name "label" { … }`, with one label for each element
// of labels, at least one. Its value is a map by label, which is empty if there is no
// block.
func BlockMap(name string, labels []string, nested *Spec) *Spec {
	return &Spec{kind: KindBlockMap, name: name, labels: slices.Clone(labels), nested: nested}
}

// Default has the value of primary, or of def if the value of primary is null. Both need a
// name if their kind has one: Default(Attr("retries", "number", false), Literal("3")).
//
// The value of def is used as it is. With a Block as primary and a Literal as def, the defaults inside the block are not
// applied if the block is absent: Literal("{}") gives zero values, in Nomad as well. The literal must have all
// values that differ from zero.
func Default(primary, def *Spec) *Spec {
	return &Spec{kind: KindDefault, nested: primary, defaultSpec: def}
}

// Literal is a constant, written as an HCL expression: `"text"`, `5`, `["a"]`.
func Literal(expr string) *Spec {
	return &Spec{kind: KindLiteral, typeOrLiteral: expr}
}

// Node is a Spec without its parts, as the functions that create a Spec have received it. Fields
// that a kind does not have are zero. For hosts only.
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
// The Node of a nil Spec has the kind KindNone. For hosts only.
func (s *Spec) Node() Node {
	if s == nil {
		return Node{}
	}
	return Node{s.kind, s.name, s.typeOrLiteral, s.required, s.labels, s.minBlocks, s.maxBlocks, s.nested, s.defaultSpec, s.attributes, s.values}
}

// Cached returns the result of compute, or of an earlier call: package block compiles each Spec once.
// It may be called concurrently, and then calls compute more than once. The Spec must not be nil. For hosts only.
func (s *Spec) Cached(compute func() any) any {
	if v := s.cache.Load(); v != nil {
		return *v
	}
	v := compute()
	s.cache.Store(&v)
	return v
}
