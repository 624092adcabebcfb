package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// These are the limits for a type whose doc comment does not justify its size.
const (
	maxMethods = 40
	maxFields  = 20
)

// largeTypeReason is the start of the sentence by which a doc comment justifies a type over the limits.
const largeTypeReason = "It is large because "

// typeSize counts the methods of a type, and the fields or methods in its declaration.
type typeSize struct {
	methods, fields int
	justified       bool     // the doc comment has a sentence that starts with largeTypeReason
	embedded        []string // embedded types of the same package
}

// addEmbedded returns the size of a type with the fields and methods of its embedded types, because they have one scope. A type with
// a reason of its own does not count again where it is embedded.
func addEmbedded(sizes map[string]typeSize, name string) typeSize {
	all := sizes[name]
	for _, embedded := range all.embedded {
		size := addEmbedded(sizes, embedded)
		if size.justified {
			continue
		}
		all.methods += size.methods
		all.fields += size.fields
	}
	return all
}

func (s typeSize) String() string { return fmt.Sprintf("%d methods, %d fields", s.methods, s.fields) }

// A type has no more methods and fields than the limits, unless its doc comment has a reason.
func TestTypeSizes(t *testing.T) {
	sizes := measureTypeSizes(t, "../..")
	if len(sizes) < 500 {
		t.Fatalf("only %d types were found", len(sizes))
	}
	for name := range sizes {
		size := addEmbedded(sizes, name)
		if !size.justified && (size.methods > maxMethods || size.fields > maxFields) {
			t.Errorf("%s has %v: a type has at most %d methods and %d fields, unless its doc comment has a sentence that starts with %q",
				name, size, maxMethods, maxFields, largeTypeReason)
		}
	}
}

// The size of a type is counted in each form of declaration, and a reason in its doc comment is
// found.
func TestTypeSizesCountsDeclarations(t *testing.T) {
	const source = `package p

// A is documented. It is large because of this test.
type A struct { a, b int; c string; B }

type (
	// B is an interface.
	B interface { one(); two() }
	C[T any] []T
)

func (*A) one() {}
func (a A) two() {}
func (C[T]) three() {}
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]typeSize{}
	addTypeSizes(sizes, "p", file)
	for name, want := range map[string]typeSize{
		"p.A": {methods: 4, fields: 4, justified: true, embedded: []string{"p.B"}}, "p.B": {methods: 2}, "p.C": {methods: 1},
	} {
		if got := addEmbedded(sizes, name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// measureTypeSizes returns the sizes of all types in the module, except for generated types and types in
// tests.
func measureTypeSizes(t *testing.T, root string) map[string]typeSize {
	t.Helper()
	sizes := map[string]typeSize{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(file) {
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			addTypeSizes(sizes, filepath.ToSlash(pkg), file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}

// addTypeSizes adds the sizes of the types that a file declares, and counts the methods in the file.
func addTypeSizes(sizes map[string]typeSize, pkg string, file *ast.File) {
	add := func(name string, n typeSize) {
		size := sizes[pkg+"."+name]
		size.methods += n.methods
		size.fields += n.fields
		size.justified = size.justified || n.justified
		size.embedded = append(size.embedded, n.embedded...)
		sizes[pkg+"."+name] = size
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv != nil {
				add(receiverTypeName(decl), typeSize{methods: 1})
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				spec, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				doc := decl.Doc.Text() + spec.Doc.Text()
				size := typeSize{justified: strings.Contains(strings.Join(strings.Fields(doc), " "), largeTypeReason)}
				switch declared := spec.Type.(type) {
				case *ast.StructType:
					size.fields, size.embedded = declared.Fields.NumFields(), embeddedTypes(pkg, declared.Fields)
				case *ast.InterfaceType:
					size.methods, size.embedded = declared.Methods.NumFields(), embeddedTypes(pkg, declared.Methods)
				}
				add(spec.Name.Name, size)
			}
		}
	}
}

// embeddedTypes returns the types of a package that a declaration embeds.
func embeddedTypes(pkg string, list *ast.FieldList) (names []string) {
	for _, field := range list.List {
		t := field.Type
		if pointer, ok := t.(*ast.StarExpr); ok {
			t = pointer.X
		}
		if name, ok := t.(*ast.Ident); ok && len(field.Names) == 0 {
			names = append(names, pkg+"."+name.Name)
		}
	}
	return names
}

// receiverTypeName returns the name of the receiver type of a method.
func receiverTypeName(method *ast.FuncDecl) string {
	expr := method.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.ParenExpr:
			expr = e.X
		case *ast.IndexExpr: // a type with one parameter
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			panic(fmt.Sprintf("method %s has a receiver of type %T", method.Name.Name, expr))
		}
	}
}
