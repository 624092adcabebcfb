package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/types"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// Sentences of a doc comment that change the lines of its declaration.
const (
	// hostsOnly omits the declaration, and the fields and methods of a type.
	hostsOnly = "For hosts only."
	// growing permits new methods of an interface, whose line has not the names of its methods.
	growing = "Later versions can add methods."
)

// list returns the lines of the packages, which are patterns of the go command in the directory. Programs have no exported
// declarations, and are omitted. A line that depends on a type for hosts only is an error.
func list(dir string, patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return nil, errors.New("name the packages as arguments, for example ./sdk")
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedModule | packages.NeedSyntax | packages.NeedTypesInfo,
		Dir:  dir,
		// The declarations for one system are printed on each machine. The race detector of CI needs C.
		Env: append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS="),
	}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", strings.Join(patterns, " "), err)
	}
	comments := comments{}
	for _, p := range loaded {
		for _, err := range p.Errors {
			return nil, fmt.Errorf("load %s: %w", p.PkgPath, err)
		}
		comments.addPackage(p)
	}
	var lines []string
	for _, p := range loaded {
		if p.Name == "main" {
			continue
		}
		w := writer{comments: comments, prefix: p.PkgPath}
		if p.Module != nil {
			w.module = p.Module.Path + "/"
			w.prefix = strings.TrimPrefix(p.PkgPath, w.module)
		}
		w.addScope(p.Types.Scope())
		if err := errors.Join(w.errs...); err != nil {
			return nil, err
		}
		lines = append(lines, w.lines...)
	}
	slices.Sort(lines)
	return lines, nil
}

// comments are the doc comments of declarations, fields and methods. A declaration in parentheses has its own comment and that
// of the parentheses.
type comments map[types.Object]string

func (c comments) addPackage(p *packages.Package) {
	add := func(names []*ast.Ident, groups ...*ast.CommentGroup) {
		for _, name := range names {
			for _, group := range groups {
				c[p.TypesInfo.Defs[name]] += group.Text() + "\n"
			}
		}
	}
	for _, file := range p.Syntax {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				add([]*ast.Ident{n.Name}, n.Doc)
			case *ast.Field:
				add(n.Names, n.Doc, n.Comment)
			case *ast.GenDecl:
				for _, spec := range n.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						add([]*ast.Ident{spec.Name}, n.Doc, spec.Doc, spec.Comment)
					case *ast.ValueSpec:
						add(spec.Names, n.Doc, spec.Doc, spec.Comment)
					}
				}
			}
			return true
		})
	}
}

// has reports whether the comment of a declaration has a sentence, possibly with line breaks.
func (c comments) has(o types.Object, sentence string) bool {
	return strings.Contains(strings.Join(strings.Fields(c[o]), " "), sentence)
}

// writer collects the lines of one package.
type writer struct {
	comments comments
	module   string // path of the module, with a slash at the end; paths of its packages are shortened by it
	prefix   string
	lines    []string
	errs     []error
}

// isPromised reports whether o has lines.
func (w *writer) isPromised(o types.Object) bool {
	return o.Exported() && !w.comments.has(o, hostsOnly)
}

func (w *writer) add(name, value string) {
	line := w.prefix + ", " + name
	if value != "" {
		line += ": " + value
	}
	w.lines = append(w.lines, line)
}

func (w *writer) addScope(scope *types.Scope) {
	for _, name := range scope.Names() {
		object := scope.Lookup(name)
		if !w.isPromised(object) {
			continue
		}
		switch o := object.(type) {
		case *types.Const:
			w.add("const "+name, w.typeText(o.Type())+" = "+o.Val().ExactString())
		case *types.Var:
			w.add("var "+name, w.typeText(o.Type()))
		case *types.Func:
			w.add("func "+name, w.typeText(o.Type()))
		case *types.TypeName:
			w.addType(o)
		}
	}
}

func (w *writer) addType(o *types.TypeName) {
	name := "type " + o.Name()
	named, isNamed := o.Type().(*types.Named)
	canGrow := w.comments.has(o, growing)
	if canGrow && (o.IsAlias() || !types.IsInterface(o.Type())) {
		w.errs = append(w.errs, fmt.Errorf("%s, %s: its comment has the sentence %q, and it declares no interface: remove the sentence", w.prefix, name, growing))
	}
	if o.IsAlias() || !isNamed {
		w.add(name, "= "+w.typeText(types.Unalias(o.Type())))
		return
	}
	name += w.typeParameters(named.TypeParams())
	switch underlying := named.Underlying().(type) {
	case *types.Interface:
		w.addInterface(name, underlying, canGrow)
		return
	case *types.Struct:
		w.add(name, "struct")
		w.addFields(name, underlying)
	default:
		w.add(name, w.typeText(underlying))
	}
	// The method set of a value tells which methods a value has without its address, which is a part of the type too.
	ofValue := types.NewMethodSet(named)
	methods := types.NewMethodSet(types.NewPointer(named))
	for i := range methods.Len() {
		method := methods.At(i).Obj()
		if !w.isPromised(method) {
			continue
		}
		receiver := o.Name()
		if ofValue.Lookup(method.Pkg(), method.Name()) == nil {
			receiver = "*" + receiver
		}
		w.add(fmt.Sprintf("method (%s) %s", receiver, method.Name()), w.typeText(methods.At(i).Type()))
	}
}

// addInterface adds the methods of an interface, with those of embedded interfaces. The line of the interface itself changes with
// each method, also with one that is not exported, and with the types of a constraint, unless the interface can grow.
func (w *writer) addInterface(name string, i *types.Interface, canGrow bool) {
	var parts []string
	for m := range i.Methods() {
		if w.isPromised(m) {
			parts = append(parts, m.Name())
			w.add(name+", method "+m.Name(), w.typeText(m.Type()))
		} else if !slices.Contains(parts, "unexported methods") {
			parts = append(parts, "unexported methods")
		}
	}
	for embedded := range i.EmbeddedTypes() {
		if _, isInterface := embedded.Underlying().(*types.Interface); !isInterface {
			parts = append(parts, w.typeText(embedded))
		}
	}
	if canGrow {
		w.add(name, "interface that can grow")
		return
	}
	slices.Sort(parts)
	w.add(name, "interface { "+strings.Join(parts, ", ")+" }")
}

// addFields adds the exported fields of a struct, and those that an embedded struct, which is not exported, promotes.
func (w *writer) addFields(name string, s *types.Struct) {
	for f := range s.Fields() {
		switch {
		case f.Exported() && !w.isPromised(f):
		case f.Exported() && f.Embedded():
			w.add(name+", embedded "+f.Name(), w.typeText(f.Type()))
		case f.Exported():
			w.add(name+", field "+f.Name(), w.typeText(f.Type()))
		case f.Embedded():
			t := f.Type()
			if p, isPointer := t.(*types.Pointer); isPointer {
				t = p.Elem()
			}
			if embedded, isStruct := t.Underlying().(*types.Struct); isStruct {
				w.addFields(name, embedded)
			}
		}
	}
}

func (w *writer) typeParameters(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var texts []string
	for p := range list.TypeParams() {
		texts = append(texts, p.Obj().Name()+" "+w.typeText(p.Constraint()))
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// typeText returns the text of a type without the names of parameters, which callers do not write.
func (w *writer) typeText(t types.Type) string {
	switch t := t.(type) {
	case *types.Named:
		if w.comments.has(t.Obj(), hostsOnly) {
			w.errs = append(w.errs, fmt.Errorf("%s: a promised declaration depends on %s.%s, whose comment has the sentence %q: add the sentence to both or to neither", w.prefix, t.Obj().Pkg().Path(), t.Obj().Name(), hostsOnly))
		}
	case *types.Pointer:
		return "*" + w.typeText(t.Elem())
	case *types.Slice:
		return "[]" + w.typeText(t.Elem())
	case *types.Array:
		return fmt.Sprintf("[%d]%s", t.Len(), w.typeText(t.Elem()))
	case *types.Map:
		return "map[" + w.typeText(t.Key()) + "]" + w.typeText(t.Elem())
	case *types.Chan:
		return [...]string{types.SendRecv: "chan ", types.SendOnly: "chan<- ", types.RecvOnly: "<-chan "}[t.Dir()] + w.typeText(t.Elem())
	case *types.Signature:
		results := w.tupleText(t.Results(), false)
		if t.Results().Len() != 1 {
			results = "(" + results + ")"
		}
		return strings.TrimSuffix("func"+w.typeParameters(t.TypeParams())+"("+w.tupleText(t.Params(), t.Variadic())+") "+results, " ()")
	}
	return types.TypeString(t, func(p *types.Package) string { return strings.TrimPrefix(p.Path(), w.module) })
}

func (w *writer) tupleText(tuple *types.Tuple, variadic bool) string {
	var texts []string
	for v := range tuple.Variables() {
		texts = append(texts, w.typeText(v.Type()))
	}
	if variadic {
		last := len(texts) - 1
		texts[last] = "..." + strings.TrimPrefix(texts[last], "[]")
	}
	return strings.Join(texts, ", ")
}
