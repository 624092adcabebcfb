package evaluate

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template/parse"

	"github.com/hashicorp/consul-template/template"

	"github.com/nomad-lite/nomad-lite/internal/templatetext"
)

// TextError is an error in the text of a template.
type TextError struct {
	Line   int // line of the template text, counted from 1; 0 if the error has no line
	Reason string
}

func (e *TextError) Error() string { return e.Reason }

// errParsed ends the execution of a template that is only parsed.
var errParsed = errors.New("the template is parsed")

// parsedFuncName is the name of a function that ends the execution of a template before its first action.
const parsedFuncName = "_parsed"

// CheckText returns the errors of a template that do not depend on data: a syntax error or an unknown function, or else the first call of
// each function that waits forever because it reads Consul or Vault. It executes no action of the text. Empty delimiters mean the
// defaults.
func CheckText(text, leftDelim, rightDelim string) []TextError {
	if err := parseText(text, leftDelim, rightDelim); err != nil {
		return []TextError{newTextError(err)}
	}
	return unansweredCalls(text, leftDelim, rightDelim)
}

func parseText(text, leftDelim, rightDelim string) error {
	if err := checkBlockCount(text, leftDelim); err != nil {
		return err
	}
	functions := newEvaluation(&Request{}).functions()
	functions[parsedFuncName] = func() (string, error) { return "", errParsed }
	t, err := template.NewTemplate(&template.NewTemplateInput{
		Contents:  cmp.Or(leftDelim, "{{") + parsedFuncName + cmp.Or(rightDelim, "}}") + text,
		LeftDelim: leftDelim, RightDelim: rightDelim, ExtFuncMap: functions,
	})
	if err == nil {
		_, err = t.Execute(&template.ExecuteInput{Brain: template.NewBrain()})
	}
	if err == nil || strings.HasSuffix(err.Error(), errParsed.Error()) {
		return nil
	}
	return err
}

// parseErrorPattern matches an error of the parser of text/template.
var parseErrorPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)^parse: template: :(\d+): (.*)$`) })

func newTextError(err error) TextError {
	part := parseErrorPattern().FindStringSubmatch(err.Error())
	if part == nil {
		return TextError{Reason: err.Error()}
	}
	line, _ := strconv.Atoi(part[1]) // the pattern matches digits only
	return TextError{Line: line, Reason: part[2]}
}

// systemByFunc maps a function to the system that it reads and that no node of this version has.
var systemByFunc = map[string]string{
	"caLeaf": consul, "caRoots": consul, "connect": consul, "datacenters": consul, "exportedServices": consul, "importedServices": consul,
	"key": consul, "keyExists": consul, "keyOrDefault": consul, "ls": consul, "node": consul, "nodes": consul, "partitions": consul,
	"peerings": consul, "safeLs": consul, "safeTree": consul, "tree": consul,
	"pkiCert": vault, "secret": vault, "secrets": vault,
}

const (
	consul = "Consul"
	vault  = "Vault"
)

// SystemOf returns the system that has the data with this name in Result.Missing: Consul, Vault, or "" for Nomad.
func SystemOf(missingName string) string {
	system, _, _ := strings.Cut(missingName, ".")
	switch system {
	case "vault":
		return vault
	case "catalog", "connect", "health", "kv", "list":
		return consul
	}
	return ""
}

// unansweredCalls returns the first call of each function in systemByFunc.
func unansweredCalls(text, leftDelim, rightDelim string) (list []TextError) {
	seen := map[string]bool{}
	forEachFunction(text, leftDelim, rightDelim, func(name string, line int) {
		if system := systemByFunc[name]; system != "" && !seen[name] {
			seen[name] = true
			list = append(list, TextError{Line: line, Reason: fmt.Sprintf("function %q: there is no %s here: nomadVar and nomadService read what this node has", name, system)})
		}
	})
	return list
}

// nondeterministicFunc matches the names of functions that return another value each time.
var nondeterministicFunc = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(timestamp|sprig_(ago|bcrypt|htpasswd|encryptAES|randInt|shuffle|gen\w+|buildCustomCert))$`)
})

// IsNondeterministic reports whether the output of a template can be another one although the data are the same.
func IsNondeterministic(text, leftDelim, rightDelim string) (found bool) {
	forEachFunction(text, leftDelim, rightDelim, func(name string, _ int) { found = found || nondeterministicFunc().MatchString(name) })
	return found
}

// forEachFunction calls f for each function that the text of a template calls, with its line. It does nothing for a text that is
// not a template.
func forEachFunction(text, leftDelim, rightDelim string, f func(name string, line int)) {
	if checkBlockCount(text, leftDelim) != nil {
		return
	}
	tree := parse.New("")
	tree.Mode = parse.SkipFuncCheck
	trees := map[string]*parse.Tree{}
	if _, err := tree.Parse(text, leftDelim, rightDelim, trees); err != nil {
		return
	}
	var functions []*parse.IdentifierNode
	for _, t := range trees {
		templatetext.WalkIdentifiers(t.Root, func(n *parse.IdentifierNode) { functions = append(functions, n) })
	}
	slices.SortFunc(functions, func(a, b *parse.IdentifierNode) int { return cmp.Compare(a.Pos, b.Pos) })
	line, at := 1, parse.Pos(0)
	for _, n := range functions {
		line += strings.Count(text[at:n.Pos], "\n")
		at = n.Pos
		f(n.Ident, line)
	}
}
