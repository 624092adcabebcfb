package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"

	"golang.org/x/tools/go/packages"
)

// kind is what a field or variable counts as.
type kind string

const (
	mutex         kind = "mutex"
	functionField kind = "function field"
	reference     kind = "reference"
)

// finding is a field or variable that counts. A field counts once for each kind.
type finding struct {
	kind     kind
	name     string         // struct and field, or variable
	position token.Position // with the file relative to the directory
}

type packageCount struct {
	path    string
	structs int
	found   []finding
}

func (c packageCount) number(k kind) int {
	n := 0
	for _, f := range c.found {
		if f.kind == k {
			n++
		}
	}
	return n
}

// countPackages returns the counts of the packages that match the patterns, by path.
func countPackages(dir string, patterns []string) ([]packageCount, error) {
	const mode = packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedSyntax
	loaded, err := packages.Load(&packages.Config{Mode: mode, Dir: dir}, patterns...)
	if err != nil {
		return nil, err
	}
	c := counter{dir: dir, counted: map[*types.Package]bool{}}
	for _, p := range loaded {
		for _, err := range p.Errors {
			return nil, fmt.Errorf("%s: %w", p.PkgPath, err)
		}
		c.counted[p.Types] = true
	}
	if len(loaded) == 0 {
		return nil, errors.New("no package matches")
	}
	counts := make([]packageCount, len(loaded))
	for i, p := range loaded {
		counts[i] = c.countPackage(p.Fset, p.Types)
	}
	slices.SortFunc(counts, func(a, b packageCount) int { return cmp.Compare(a.path, b.path) })
	return counts, nil
}

// counter counts packages.
type counter struct {
	dir     string
	counted map[*types.Package]bool
}

func (c counter) countPackage(files *token.FileSet, p *types.Package) packageCount {
	result := packageCount{path: p.Path()}
	add := func(k kind, name string, at token.Pos) {
		place := files.Position(at)
		if relative, err := filepath.Rel(c.dir, place.Filename); err == nil {
			place.Filename = relative
		}
		result.found = append(result.found, finding{k, name, place})
	}
	for _, name := range p.Scope().Names() {
		switch object := p.Scope().Lookup(name).(type) {
		case *types.Var:
			if contains(object.Type(), isMutex) {
				add(mutex, name, object.Pos())
			}
		case *types.TypeName:
			declared, isStruct := object.Type().Underlying().(*types.Struct)
			if !isStruct || object.IsAlias() {
				continue
			}
			result.structs++
			self := object.Type().(*types.Named).Obj()
			c.countFields(declared, self, name, add)
		}
	}
	slices.SortStableFunc(result.found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.position.Filename, b.position.Filename), cmp.Compare(a.position.Line, b.position.Line))
	})
	return result
}

// countFields counts the fields of a struct, and of the unnamed structs that it contains.
func (c counter) countFields(s *types.Struct, self *types.TypeName, prefix string, add func(kind, string, token.Pos)) {
	for field := range s.Fields() {
		name := prefix + "." + field.Name()
		t := field.Type()
		if contains(t, isMutex) {
			add(mutex, name, field.Pos())
		}
		if contains(t, isFunction) {
			add(functionField, name, field.Pos())
		}
		if contains(t, func(t types.Type) bool { return c.isOther(t, self) }) {
			add(reference, name, field.Pos())
		}
		contains(t, func(t types.Type) bool {
			if unnamed, ok := t.(*types.Struct); ok {
				c.countFields(unnamed, self, name, add)
			}
			return false
		})
	}
}

// isOther reports whether t is a struct or an interface of the counted packages, and not self.
func (c counter) isOther(t types.Type, self *types.TypeName) bool {
	named, ok := t.(*types.Named)
	if !ok || !c.counted[named.Obj().Pkg()] || named.Origin().Obj() == self {
		return false
	}
	switch named.Underlying().(type) {
	case *types.Struct, *types.Interface:
		return true
	}
	return false
}

func isMutex(t types.Type) bool {
	named, ok := t.(*types.Named)
	if !ok || named.Obj().Pkg() == nil || named.Obj().Pkg().Path() != "sync" {
		return false
	}
	return named.Obj().Name() == "Mutex" || named.Obj().Name() == "RWMutex"
}

func isFunction(t types.Type) bool {
	_, ok := t.(*types.Signature)
	return ok
}

// contains reports whether matches is true for t or a type that t contains. It does not look into the fields of structs,
// the parameters of functions or the methods of interfaces.
func contains(t types.Type, matches func(types.Type) bool) bool {
	seen := map[types.Type]bool{} // a named slice can contain itself
	var search func(types.Type) bool
	search = func(t types.Type) bool {
		t = types.Unalias(t)
		if seen[t] {
			return false
		}
		seen[t] = true
		if matches(t) {
			return true
		}
		switch t := t.(type) {
		case *types.Named:
			for argument := range t.TypeArgs().Types() {
				if search(argument) {
					return true
				}
			}
			if _, isStruct := t.Underlying().(*types.Struct); isStruct {
				return false
			}
			return search(t.Underlying())
		case *types.Map:
			return search(t.Key()) || search(t.Elem())
		case interface{ Elem() types.Type }: // pointer, slice, array, channel
			return search(t.Elem())
		}
		return false
	}
	return search(t)
}
