// Package nesting rejects text for which the parser or the evaluator of HCL would
// recurse too deeply.
//
// Both recurse as deep as their input, and a stack overflow ends a Go program. So each
// untrusted text is scanned before it is parsed: opening brackets, prefix operators,
// and chains, whose tree is as deep as they are long. Numbers that would become a
// gigabyte of text are rejected too. The parser reports all other errors of a text, and
// the reader of the text limits its size.
package nesting
