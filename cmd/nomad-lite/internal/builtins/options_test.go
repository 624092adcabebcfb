package builtins

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A builtin reads each option that it decodes, so no option is accepted without an effect. If a schema has a key without a field, the
// SDK returns an error.
func TestOptionsAreRead(t *testing.T) {
	type field struct{ dir, name string }
	options, read := map[field]bool{}, map[field]bool{}
	err := filepath.WalkDir("../../../../builtin", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				read[field{filepath.Dir(path), n.Sel.Name}] = true
			case *ast.Field:
				for _, name := range n.Names {
					if n.Tag != nil && strings.Contains(n.Tag.Value, `codec:"`) {
						options[field{filepath.Dir(path), name.Name}] = true
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil || len(options) < 100 {
		t.Fatalf("%d options, %v", len(options), err)
	}
	for f := range options {
		if !read[f] && f.name != "Email" { // of the credentials of a registry, which ignores it
			t.Errorf("%s: nothing reads the option of the field %s", f.dir, f.name)
		}
	}
}
