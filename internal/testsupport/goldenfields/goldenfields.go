package goldenfields

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// Record is the name and the Go type of one kind of stored values.
type Record struct {
	Name string
	Type reflect.Type
}

// Field is a field of a struct under the name that is stored.
type Field struct {
	Name string
	Type reflect.Type
}

// List returns a line for each record and for each field of their types, sorted: the name, a space, and the kind of the
// value. The function fieldsOf returns the stored fields of a struct.
func List(records []Record, fieldsOf func(reflect.Type) []Field) []string {
	lines := make(map[string]bool)
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Map:
			add(t.Key())
			add(t.Elem())
		case reflect.Pointer, reflect.Slice, reflect.Array:
			add(t.Elem())
		case reflect.Struct:
			if t == reflect.TypeFor[time.Time]() {
				return
			}
			for _, f := range fieldsOf(t) {
				line := fmt.Sprintf("%s.%s %s", t, f.Name, kindOf(f.Type))
				if !lines[line] {
					lines[line] = true
					add(f.Type)
				}
			}
		}
	}
	for _, r := range records {
		lines[strings.ReplaceAll(r.Name, " ", "/")+" "+kindOf(r.Type)] = true
		add(r.Type)
	}
	return slices.Sorted(maps.Keys(lines))
}

// kindOf returns a text for the kind of the stored values of a type, such as "[]string" or "time".
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + kindOf(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + kindOf(t.Elem())
	case reflect.Map:
		return "map[" + kindOf(t.Key()) + "]" + kindOf(t.Elem())
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return "time"
		}
		return t.String()
	case reflect.Interface:
		return "any"
	}
	return t.Kind().String()
}

// Compare compares two results of List, and returns what the difference means for stored values. An alias maps the former
// name of a field, with its type, to the present name.
func Compare(golden, current []string, aliases map[string]string) (problems []string) {
	toMap := func(lines []string) map[string]string {
		kinds := make(map[string]string)
		for _, line := range lines {
			name, kind, _ := strings.Cut(line, " ")
			kinds[name] = kind
		}
		return kinds
	}
	was, is := toMap(golden), toMap(current)
	for _, name := range slices.Sorted(maps.Keys(was)) {
		now := name
		if alias, ok := aliases[name]; ok {
			now = name[:strings.LastIndex(name, ".")+1] + alias
		}
		switch kind, ok := is[now]; {
		case !ok:
			problems = append(problems, fmt.Sprintf("%s has disappeared: earlier builds have stored values under this name, which would be lost. Restore the name in the field's tag, or add an alias", name))
		case kind != was[name]:
			problems = append(problems, fmt.Sprintf("%s was %s and is %s: stored values would not be read. Restore the kind, or store the new kind under a new name", name, was[name], kind))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if was[name] == "" {
			problems = append(problems, name+isNewText)
		}
	}
	return problems
}

// isNewText is the suffix of a problem that reports a new field. A new field loses no stored values.
const isNewText = " is not in the list"

// CheckList fails the test unless the golden list of a file has the same fields as the result of List. make reference writes the file,
// unless a field has disappeared or changed.
func CheckList(t *testing.T, file string, current []string, aliases map[string]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range Compare(strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), current, aliases) {
		if !strings.HasSuffix(problem, isNewText) {
			t.Error(problem)
		}
	}
	if !t.Failed() {
		golden.CheckReference(t, file, strings.Join(current, "\n")+"\n")
	}
}

// CheckCodec compares the values of types that are stored with the names of the tag "codec" with the list in
// testdata/fields.golden of the package of the test. It is called once per package.
func CheckCodec(t *testing.T, types ...reflect.Type) {
	t.Helper()
	var records []Record
	for _, typ := range types {
		records = append(records, Record{typ.String(), typ})
	}
	CheckList(t, filepath.Join("testdata", "fields.golden"), List(records, codecFields), nil)
}

// codecFields returns the fields of a struct under their names in the tag "codec" and, without a tag, under their names in Go. The
// fields of an embedded struct are fields of the struct.
func codecFields(t reflect.Type) []Field {
	var fields []Field
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("codec"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields = append(fields, Field{name, f.Type})
	}
	return fields
}
