// Package convert converts values to the types that a schema asks for, in time
// that is linear in the number of elements.
//
// The results and the errors are those of the package convert of go-cty, which
// compares each element of a tuple with each other one before it makes a list of
// them. hclspec and the job file parser, whose lists are written by strangers,
// call this package instead. It keeps no state.
package convert
