package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A generic type keeps all methods of the types that it mentions in the binary. The API client has
// many methods, so no generic type may mention it: see DESIGN.md.
func TestGenericTypesDoNotMentionAPIClient(t *testing.T) {
	var goFilePaths []string
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
			goFilePaths = append(goFilePaths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	generic := 0
	for _, path := range goFilePaths {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if method, ok := n.(*ast.FuncDecl); ok && isExportedGenericMethod(method) {
				if mentionsName(method.Type, "Client", "Flags") {
					t.Errorf("%s: a method of a generic type mentions the client: 0.4 MB", fset.Position(method.Pos()))
				}
			}
			params, fields := declaredTypes(n)
			if len(params) > 0 {
				generic++
			}
			for _, field := range fields {
				if mentionsName(field, params...) && mentionsName(field, "Client") {
					t.Errorf("%s mentions a type parameter and the client: 0.4 MB", fset.Position(field.Pos()))
				}
			}
			return true
		})
	}
	if generic == 0 {
		t.Error("nothing is generic: this test looks at nothing")
	}
}

// isExportedGenericMethod reports whether a function is an exported method of a generic type.
func isExportedGenericMethod(f *ast.FuncDecl) bool {
	if f.Recv == nil || !f.Name.IsExported() {
		return false
	}
	receiver := f.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	switch receiver.(type) {
	case *ast.IndexExpr, *ast.IndexListExpr:
		return true
	}
	return false
}

// declaredTypes returns the names of a declaration's type parameters, and the type expressions in
// the declaration.
func declaredTypes(n ast.Node) (params []string, types []ast.Expr) {
	var typeParams *ast.FieldList
	switch n := n.(type) {
	case *ast.TypeSpec:
		typeParams, types = n.TypeParams, []ast.Expr{n.Type}
	case *ast.FuncDecl:
		typeParams = n.Type.TypeParams
		for _, field := range n.Type.Params.List {
			types = append(types, field.Type)
		}
	}
	if typeParams == nil {
		return nil, nil
	}
	for _, field := range typeParams.List {
		for _, name := range field.Names {
			params = append(params, name.Name)
		}
	}
	return params, types
}

func mentionsName(expr ast.Expr, names ...string) (found bool) {
	ast.Inspect(expr, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && slices.Contains(names, id.Name)
		return !found
	})
	return found
}
