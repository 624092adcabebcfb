// Package nesting refuses text that would take the parser or the evaluator of HCL
// too deep.
//
// Both recurse as deep as their input, and a Go program does not survive the end
// of its stack. So each text of a stranger is scanned before it is parsed: what
// opens something, what stands in front of an operand, and chains, whose tree is as
// deep as they are long. Numbers that would become a gigabyte of text are refused
// with the rest. What else is wrong with a text, its parser finds; how large it may
// be, its reader knows.
package nesting
