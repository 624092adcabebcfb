// Package convert converts values to the types of a schema, in time that is linear in
// the number of elements.
//
// It returns the same results and errors as package convert of go-cty, which compares
// each element of a tuple with every other before it makes a list of them. hclspec and
// the job file parser, whose lists are untrusted, call this package instead. It keeps
// no state.
package convert
