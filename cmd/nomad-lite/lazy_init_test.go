package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoPatternIsCompiledAtStart checks that no package compiles a regular expression while it is initialized: each process of a
// node is the same program, and would wait for all of them and keep them in memory.
func TestNoPatternIsCompiledAtStart(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}\n{{end}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, path := range strings.Fields(string(out)) {
		if !strings.HasPrefix(path, root+"/") {
			continue
		}
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			variables, ok := declaration.(*ast.GenDecl)
			if !ok || variables.Tok != token.VAR {
				continue
			}
			ast.Inspect(variables, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok && strings.HasSuffix(call.Sel.Name, "Compile") {
					if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "regexp" {
						t.Errorf("%s: wrap it in sync.OnceValue", fset.Position(call.Pos()))
					}
				}
				_, isFunction := n.(*ast.FuncLit)
				return !isFunction
			})
		}
	}
	if files < 500 {
		t.Errorf("%d files of this module were read", files)
	}
}
