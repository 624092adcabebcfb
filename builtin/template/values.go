package template

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"text/template"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// nomadVarMeta identifies a variable in the results of nomadVarList.
type nomadVarMeta struct{ Namespace, Path string }

func (m nomadVarMeta) String() string { return m.Path }

// nomadVarItems is a variable in templates: a map of its items.
type nomadVarItems map[string]nomadVarItem

// nomadVarItem is the value of an item of a variable. It is a string, and has the method
// Value for templates that call it.
type nomadVarItem string

// Value returns the item as a string, the type that functions accept.
func (i nomadVarItem) Value() string { return string(i) }

// Keys returns the keys in order.
func (n nomadVarItems) Keys() []string { return slices.Sorted(maps.Keys(n)) }

// Values returns the values in the order of their keys.
func (n nomadVarItems) Values() []string {
	list := make([]string, 0, len(n))
	for _, k := range n.Keys() {
		list = append(list, string(n[k]))
	}
	return list
}

// Tuples returns the keys and values in the order of the keys.
func (n nomadVarItems) Tuples() []nomadVarTuple {
	list := make([]nomadVarTuple, 0, len(n))
	for _, k := range n.Keys() {
		list = append(list, nomadVarTuple{k, string(n[k])})
	}
	return list
}

type nomadVarTuple struct{ K, V string }

// serviceInstance is a service instance, with the field Node that templates use instead
// of NodeID.
type serviceInstance struct {
	hook.Service
	Node string
}

// serviceNameAndTags is a service, with the tags of all its instances.
type serviceNameAndTags struct {
	Name string
	Tags []string
}

var (
	stringType = reflect.TypeFor[string]()
	anyType    = reflect.TypeFor[any]()
)

// wrapFuncsToAcceptVarItems wraps functions so that their string parameters accept an item,
// because text/template does not convert an item to a string.
func wrapFuncsToAcceptVarItems(funcs template.FuncMap) template.FuncMap {
	for name, f := range funcs {
		funcs[name] = wrapFuncToAcceptVarItems(name, reflect.ValueOf(f)).Interface()
	}
	return funcs
}

func wrapFuncToAcceptVarItems(name string, f reflect.Value) reflect.Value {
	t := f.Type()
	in := make([]reflect.Type, t.NumIn())
	stringParams := 0
	for i := range in {
		if in[i] = t.In(i); in[i] == stringType {
			in[i] = anyType
			stringParams++
		}
	}
	if stringParams == 0 {
		return f
	}
	out := []reflect.Type{t.Out(0), reflect.TypeFor[error]()}
	return reflect.MakeFunc(reflect.FuncOf(in, out, t.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		for i := range args {
			if t.In(i) != stringType {
				continue
			}
			text := args[i].Elem()
			if text.IsValid() && text.Kind() != reflect.String {
				err := fmt.Errorf("%s wants a text, not %s", name, text.Type())
				return []reflect.Value{reflect.Zero(t.Out(0)), reflect.ValueOf(&err).Elem()}
			}
			args[i] = reflect.New(stringType).Elem()
			if text.IsValid() {
				args[i].SetString(text.String())
			}
		}
		call := f.Call
		if t.IsVariadic() {
			call = f.CallSlice
		}
		results := call(args)
		if len(results) == 1 {
			results = append(results, reflect.Zero(out[1]))
		}
		return results
	})
}
