package output

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"
)

// executeTemplate executes the Go template text with value. Its errors have the position in the template, and name the
// fields of the API's objects instead of Go types.
func executeTemplate(text string, value any) (string, error) {
	const name = "t"
	t, err := template.New(name).Parse(text)
	if err != nil {
		return "", errors.New(strings.TrimPrefix(err.Error(), "template: "+name+":"))
	}
	var rendered strings.Builder
	if err := t.Execute(&rendered, value); err != nil {
		return "", describeTemplateError(err, value)
	}
	return rendered.String(), nil
}

var (
	executionErrorPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?s)^template: \w+:(\d+:\d+): executing ".*?" at (<.*?>): (.*)$`)
	})
	unknownFieldPattern  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^can't evaluate field (\w+) in type (\S+)`) })
	missingObjectPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^nil pointer evaluating \S+\.(\w+)$`) })
)

// describeTemplateError rewrites an execution error of text/template, so that it names no Go types and suggests a
// correction.
func describeTemplateError(err error, value any) error {
	part := executionErrorPattern().FindStringSubmatch(err.Error())
	if part == nil {
		return err
	}
	position, action, reason := part[1], part[2], part[3]
	if field := unknownFieldPattern().FindStringSubmatch(reason); field != nil {
		return fmt.Errorf("%s: %s: %s", position, action, describeUnknownField(field[1], field[2], reflect.TypeOf(value)))
	}
	if field := missingObjectPattern().FindStringSubmatch(reason); field != nil {
		return fmt.Errorf("%s: %s: there is no field %q, because the object before it is not set: test it first, as in {{with .Object}}{{.%s}}{{end}}",
			position, action, field[1], field[1])
	}
	if strings.HasPrefix(reason, "range can't iterate over ") {
		return fmt.Errorf("%s: %s: range needs a list or a map, and this is one value: leave range out", position, action)
	}
	return fmt.Errorf("%s: %s: %s", position, action, reason)
}

// describeUnknownField returns the reason why values of the Go type typeName have no such field. root is the type of
// the whole value; typeName is root or a type within it.
func describeUnknownField(field, typeName string, root reflect.Type) string {
	if strings.HasPrefix(typeName, "[]") {
		return fmt.Sprintf("the value is a list and has no field %q: write {{range .}}{{.%s}}{{end}}", field, field)
	}
	found := findNestedTypeByName(root, typeName, make(map[reflect.Type]bool))
	if found == nil {
		return fmt.Sprintf("there is no field %q", field)
	}
	for found.Kind() == reflect.Pointer {
		found = found.Elem()
	}
	if found.Kind() != reflect.Struct {
		return fmt.Sprintf("there is no field %q: the value has no fields", field)
	}
	var fields []string
	for _, f := range reflect.VisibleFields(found) {
		if f.IsExported() && !f.Anonymous {
			fields = append(fields, f.Name)
		}
	}
	if i := slices.IndexFunc(fields, func(known string) bool { return strings.EqualFold(known, field) }); i >= 0 {
		return fmt.Sprintf("there is no field %q: did you mean %q?", field, fields[i])
	}
	slices.Sort(fields)
	return fmt.Sprintf("there is no field %q; there are %s", field, strings.Join(fields, ", "))
}

// findNestedTypeByName returns t or the type within t that has this name, or nil if there is none. seen ends the
// recursion of types that contain themselves.
func findNestedTypeByName(t reflect.Type, name string, seen map[reflect.Type]bool) reflect.Type {
	if t == nil || seen[t] {
		return nil
	}
	seen[t] = true
	if t.String() == name {
		return t
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return findNestedTypeByName(t.Elem(), name, seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if found := findNestedTypeByName(t.Field(i).Type, name, seen); found != nil {
				return found
			}
		}
	}
	return nil
}
