// Package nesting rejects text for which the parser or the evaluator of HCL would recurse
// too deeply.
//
// Both recurse as deep as their input is nested, and a stack overflow terminates a Go
// program. Therefore each untrusted text is scanned before it is parsed, for open brackets,
// unary operators, and chains of operators, whose syntax tree is as deep as the chain is
// long. The scan also rejects numbers whose decimal text would be a gigabyte long. The
// parser reports all other errors of a text, and the caller limits its size.
package nesting
