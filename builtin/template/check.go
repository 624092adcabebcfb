package template

import (
	"maps"
	"regexp"
	"strconv"
	"sync"
	"text/template"
)

// TextError is an error in the text of a template.
type TextError struct {
	Line   int // line of the template text, counted from 1; 0 if the error has no line
	Reason string
}

func (e *TextError) Error() string { return e.Reason }

const checkedTemplateName = "template"

var parseErrorPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^template: ` + checkedTemplateName + `:(\d+): (.*)$`)
})

// CheckText returns the first error that a task would get for the text of its template, whatever
// the data are: a syntax error, or a function that does not exist or always fails. It renders nothing.
// Empty delimiters are the default delimiters.
func CheckText(text, leftDelim, rightDelim string) *TextError {
	if _, err := compileTemplate(&evaluationRequest{Name: checkedTemplateName, Text: text, LeftDelim: leftDelim, RightDelim: rightDelim}); err != nil {
		return parseTemplateTextError(err)
	}
	functions := maps.Clone(pureFuncs())
	maps.Copy(functions, (*renderPass)(nil).renderPassFuncs())
	for name := range unsupportedFuncs() {
		delete(functions, name)
	}
	// The parser reports a function that is not in the map, with its line.
	if _, err := template.New(checkedTemplateName).Delims(leftDelim, rightDelim).Funcs(functions).Parse(text); err != nil {
		return parseTemplateTextError(err)
	}
	return nil
}

var undefinedFunctionPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^function "(\w+)" not defined$`) })

func parseTemplateTextError(err error) *TextError {
	part := parseErrorPattern().FindStringSubmatch(err.Error())
	if part == nil {
		return &TextError{Reason: err.Error()}
	}
	line, _ := strconv.Atoi(part[1]) // the pattern matches digits only
	reason := part[2]
	if f := undefinedFunctionPattern().FindStringSubmatch(reason); f != nil {
		reason = "there is no function " + strconv.Quote(f[1])
		if why := unsupportedFuncs()[f[1]]; why != "" {
			reason = "function " + strconv.Quote(f[1]) + ": " + why
		}
	}
	return &TextError{Line: line, Reason: reason}
}
