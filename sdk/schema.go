package sdk

import "github.com/nomad-lite/nomad-lite/hclspec"

// Spec is the schema of a configuration block. It is built by the functions below: an
// [Object] of named parts at the top, each of which is one of the others.
//
// An empty name of an attribute or block means its key in the enclosing Object;
// elsewhere the name must be given.
type Spec = hclspec.Spec

// Object is a block with named parts.
func Object(parts map[string]*Spec) *Spec { return hclspec.Object(parts) }

// Attr is `name = value`. typ is a type expression: string, number, bool, any,
// list(T), set(T), map(T). For a map, write BlockAttrs or "list(map(string))":
// an HCL job cannot fill a plain "map(string)".
func Attr(name, typ string, required bool) *Spec { return hclspec.Attr(name, typ, required) }

// Block is `name { … }`, at most once.
func Block(name string, nested *Spec, required bool) *Spec {
	return hclspec.Block(name, nested, required)
}

// BlockAttrs is `name { key = value … }` with keys that the user chooses.
func BlockAttrs(name, typ string, required bool) *Spec {
	return hclspec.BlockAttrs(name, typ, required)
}

// BlockList is `name { … }` from min to max times, in order; max 0 means any number.
func BlockList(name string, nested *Spec, min, max uint64) *Spec {
	return hclspec.BlockList(name, nested, min, max)
}

// BlockMap is `name "label" { … }`, any number of times.
func BlockMap(name string, labels []string, nested *Spec) *Spec {
	return hclspec.BlockMap(name, labels, nested)
}

// Default is primary, or the value of other if primary is not given:
// Default(Attr("retries", "number", false), Literal("3")).
func Default(primary, other *Spec) *Spec { return hclspec.Default(primary, other) }

// Literal is an HCL expression: `5`, `true`, or `"text"` with its quotes.
func Literal(expression string) *Spec { return hclspec.Literal(expression) }
