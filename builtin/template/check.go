package template

import "github.com/nomad-lite/nomad-lite/builtin/template/evaluate"

// TextError is an error in the text of a template.
type TextError = evaluate.TextError

// CheckText returns the first error that a task would get for the text of its template, whatever the data are: a syntax error, or a
// function that does not exist. It renders nothing. Empty delimiters are the default delimiters.
func CheckText(text, leftDelim, rightDelim string) *TextError {
	return evaluate.CheckText(text, leftDelim, rightDelim)
}

// UnansweredCalls returns the calls of functions for which a task would wait forever, because they read systems that no node of
// this version has.
func UnansweredCalls(text, leftDelim, rightDelim string) []TextError {
	return evaluate.UnansweredCalls(text, leftDelim, rightDelim)
}
