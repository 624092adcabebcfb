package taskrunner

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// A step's code can return exactly the results with a row for the step in the table of package tasksteps.
func TestStepsReturnTheResultsOfTheirRows(t *testing.T) {
	reader := newResultReader(t)
	returned := reader.resultsByStep()
	for s := tasksteps.None + 1; s.String() != tasksteps.None.String(); s++ {
		results, executed := returned[s]
		if !executed {
			t.Errorf("execute has no case for %q", s)
		}
		for r := tasksteps.Done; r <= tasksteps.NoResult; r++ {
			switch _, hasRow := tasksteps.Next(s, r); {
			case hasRow && !results[r]:
				t.Errorf("%q has a row for the result %q, which its code cannot return", s, r)
			case !hasRow && results[r]:
				t.Errorf("the code of %q can return the result %q, for which it has no row", s, r)
			}
		}
	}
}

// resultSet is a set of results.
type resultSet map[tasksteps.Result]bool

// resultReader reads which results this package's functions can return. A returned expression is a constant, a parameter, or a
// call to another function in the package; the reader fails the test for any other one.
type resultReader struct {
	t      *testing.T
	files  *token.FileSet
	info   *types.Info
	decls  map[types.Object]*ast.FuncDecl
	result types.Type // tasksteps.Result
	active []*ast.FuncDecl
}

// newResultReader checks this package's types. It reads package tasksteps from its source, and replaces all other imports by
// empty packages, because no result depends on them.
func newResultReader(t *testing.T) *resultReader {
	r := &resultReader{t: t, files: token.NewFileSet(), decls: make(map[types.Object]*ast.FuncDecl), info: &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
	}}
	imported := make(importedPackages)
	const path = "github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	steps, _ := r.checkPackage(path, "../tasksteps", imported)
	imported[path] = steps
	r.result = steps.Scope().Lookup("Result").Type()
	_, sources := r.checkPackage("taskrunner", ".", imported)
	for _, file := range sources {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				r.decls[r.info.Defs[f.Name]] = f
			}
		}
	}
	return r
}

func (r *resultReader) checkPackage(path, dir string, imports types.Importer) (*types.Package, []*ast.File) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		r.t.Fatal(err)
	}
	var sources []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(r.files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			r.t.Fatal(err)
		}
		sources = append(sources, file)
	}
	config := types.Config{Importer: imports, Error: func(error) {}} // the empty packages' members are errors
	checked, _ := config.Check(path, r.files, sources, r.info)
	return checked, sources
}

// importedPackages is a types.Importer that returns an empty package for an unknown path.
type importedPackages map[string]*types.Package

func (p importedPackages) Import(path string) (*types.Package, error) {
	if p[path] == nil {
		p[path] = types.NewPackage(path, filepath.Base(path))
		p[path].MarkComplete()
	}
	return p[path], nil
}

// resultsByStep returns the results for each case in the method execute.
func (r *resultReader) resultsByStep() map[tasksteps.Step]resultSet {
	byStep := make(map[tasksteps.Step]resultSet)
	for _, decl := range r.decls {
		if decl.Name.Name != "execute" || decl.Recv == nil {
			continue
		}
		for _, statement := range decl.Body.List {
			cases, ok := statement.(*ast.SwitchStmt)
			if !ok {
				continue
			}
			for _, c := range cases.Body.List {
				c := c.(*ast.CaseClause)
				if _, ends := c.Body[len(c.Body)-1].(*ast.ReturnStmt); !ends {
					r.fail(c, "the case does not end with a return")
				}
				for _, step := range c.List {
					byStep[tasksteps.Step(r.intValue(step))] = r.returned(&ast.BlockStmt{List: c.Body}, nil)
				}
			}
		}
	}
	return byStep
}

// returned returns the results from a body's return statements.
func (r *resultReader) returned(body *ast.BlockStmt, resultsByParameter map[types.Object]resultSet) resultSet {
	all := make(resultSet)
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if len(n.Results) != 1 {
				r.fail(n, "the statement does not return one result")
			}
			for result := range r.results(n.Results[0], resultsByParameter) {
				all[result] = true
			}
		}
		return true
	})
	return all
}

// results returns an expression's possible results.
func (r *resultReader) results(e ast.Expr, resultsByParameter map[types.Object]resultSet) resultSet {
	if r.info.Types[e].Value != nil {
		return resultSet{tasksteps.Result(r.intValue(e)): true}
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if results, ok := resultsByParameter[r.info.Uses[e]]; ok {
			return results
		}
	case *ast.CallExpr:
		if decl := r.decls[r.callee(e)]; decl != nil && !slices.Contains(r.active, decl) {
			r.active = append(r.active, decl)
			defer func() { r.active = r.active[:len(r.active)-1] }()
			return r.returned(decl.Body, r.arguments(decl, e, resultsByParameter))
		}
	}
	r.fail(e, "the results of the expression are unknown: return a constant, a parameter, or a call of a function of this package")
	return nil
}

func (r *resultReader) callee(call *ast.CallExpr) types.Object {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return r.info.Uses[f]
	case *ast.SelectorExpr:
		return r.info.Uses[f.Sel]
	}
	return nil
}

// arguments returns the results that a function's parameters can have in a call.
func (r *resultReader) arguments(decl *ast.FuncDecl, call *ast.CallExpr, resultsByParameter map[types.Object]resultSet) map[types.Object]resultSet {
	byParameter := make(map[types.Object]resultSet)
	i := 0
	for _, field := range decl.Type.Params.List {
		for _, name := range field.Names {
			if object := r.info.Defs[name]; types.Identical(object.Type(), r.result) {
				byParameter[object] = r.results(call.Args[i], resultsByParameter)
			}
			i++
		}
	}
	return byParameter
}

func (r *resultReader) intValue(e ast.Expr) int64 {
	value, ok := constant.Int64Val(r.info.Types[e].Value)
	if !ok {
		r.fail(e, "the expression is no constant")
	}
	return value
}

func (r *resultReader) fail(n ast.Node, why string) {
	r.t.Helper()
	r.t.Fatalf("%s: %s", r.files.Position(n.Pos()), why)
}
