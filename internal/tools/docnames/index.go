package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// index has the names of all packages of the work tree.
type index struct {
	root     string
	goroot   string
	fset     *token.FileSet
	packages map[string]*goPackage   // by import path
	byName   map[string][]*goPackage // by the name before a dot
	standard map[string]*goPackage   // by import path: packages of the standard library that were needed; nil if there is none
	words    map[string]bool         // all identifiers of the code and all words of its strings
	consts   map[string]bool         // names of constants
	nonConst map[string]bool         // names of functions, types, fields and parameters
	paths    map[string]bool         // all files of the work tree, relative to root
}

// goPackage has the names that the files of a folder declare, with its tests.
type goPackage struct {
	importPath  string
	dir         string
	name        string
	files       []*goFile
	decls       map[string]bool            // names at the top level
	members     map[string]map[string]bool // names of fields and methods, by type
	openTypes   map[string]bool            // types that have members of other types, as they embed them or are an alias
	imports     map[string]string          // import paths by the name before a dot, of all files
	unqualified map[string]bool            // identifiers that are not behind a dot
	words       map[string]bool            // names, and all words of the strings
}

type goFile struct {
	tree      *ast.File
	name      string
	generated bool
	imports   map[string]string // import paths by the name before a dot
}

var (
	moduleLine = regexp.MustCompile(`(?m)^module (\S+)`)
	wordRegexp = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	majorPart  = regexp.MustCompile(`^v\d+$`)
)

func readTree(root string) (*index, error) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find the standard library: %w", err)
	}
	ix := &index{
		root: root, goroot: strings.TrimSpace(string(goroot)), fset: token.NewFileSet(),
		packages: map[string]*goPackage{}, byName: map[string][]*goPackage{}, standard: map[string]*goPackage{},
		words: map[string]bool{}, consts: map[string]bool{}, nonConst: map[string]bool{}, paths: map[string]bool{},
	}
	modules := map[string]string{} // import path of each folder with a go.mod
	err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if file != root && (name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return fs.SkipDir
			}
			text, err := os.ReadFile(filepath.Join(file, "go.mod"))
			if module := moduleLine.FindSubmatch(text); err == nil && module != nil {
				modules[file] = string(module[1])
			}
			return nil
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		ix.paths[filepath.ToSlash(relative)] = true
		if filepath.Ext(name) != ".go" {
			return nil
		}
		dir := filepath.Dir(file)
		base := dir
		for modules[base] == "" && base != root {
			base = filepath.Dir(base)
		}
		below, err := filepath.Rel(base, dir)
		if err != nil {
			return err
		}
		importPath := path.Join(modules[base], filepath.ToSlash(below))
		p := ix.packages[importPath]
		if p == nil {
			p = newPackage(importPath, dir)
			ix.packages[importPath] = p
		}
		return p.addFile(ix.fset, file)
	})
	if err != nil {
		return nil, err
	}
	for _, importPath := range slices.Sorted(maps.Keys(ix.packages)) {
		p := ix.packages[importPath]
		ix.byName[p.name] = append(ix.byName[p.name], p)
		for _, f := range p.files {
			ix.addWords(p, f.tree)
		}
	}
	return ix, nil
}

func newPackage(importPath, dir string) *goPackage {
	return &goPackage{
		importPath: importPath, dir: dir,
		decls: map[string]bool{}, members: map[string]map[string]bool{}, openTypes: map[string]bool{},
		imports: map[string]string{}, words: map[string]bool{}, unqualified: map[string]bool{},
	}
}

func (p *goPackage) addFile(fset *token.FileSet, name string) error {
	tree, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f := &goFile{tree: tree, name: filepath.Base(name), generated: ast.IsGenerated(tree), imports: map[string]string{}}
	p.files = append(p.files, f)
	if pkg := tree.Name.Name; !strings.HasSuffix(name, "_test.go") || p.name == "" {
		p.name = strings.TrimSuffix(pkg, "_test")
	}
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		local := path.Base(imported)
		if majorPart.MatchString(local) {
			local = path.Base(path.Dir(imported))
		}
		if spec.Name != nil {
			local = spec.Name.Name
		}
		f.imports[local], p.imports[local] = imported, imported
	}
	for _, decl := range tree.Decls {
		p.addDecl(decl)
	}
	return nil
}

func (p *goPackage) addDecl(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil {
			p.decls[decl.Name.Name] = true
			return
		}
		p.addMember(typeName(decl.Recv.List[0].Type), decl.Name.Name)
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					p.decls[name.Name] = true
				}
			case *ast.TypeSpec:
				p.decls[spec.Name.Name] = true
				p.addType(spec.Name.Name, spec.Type)
			}
		}
	}
}

func (p *goPackage) addType(name string, expr ast.Expr) {
	var fields *ast.FieldList
	switch expr := expr.(type) {
	case *ast.StructType:
		fields = expr.Fields
	case *ast.InterfaceType:
		fields = expr.Methods
	case *ast.Ident, *ast.SelectorExpr, *ast.StarExpr, *ast.IndexExpr, *ast.IndexListExpr:
		p.openTypes[name] = true
		return
	default:
		return
	}
	for _, field := range fields.List {
		for _, member := range field.Names {
			p.addMember(name, member.Name)
		}
		if len(field.Names) == 0 {
			p.openTypes[name] = true
			p.addMember(name, typeName(field.Type))
		}
	}
}

func (p *goPackage) addMember(typ, member string) {
	if p.members[typ] == nil {
		p.members[typ] = map[string]bool{}
	}
	p.members[typ][member] = true
}

// typeName returns the name of a type without its package, pointers and parameters.
func typeName(expr ast.Expr) string {
	for {
		switch e := expr.(type) {
		case *ast.Ident:
			return e.Name
		case *ast.SelectorExpr:
			return e.Sel.Name
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		default:
			return ""
		}
	}
}

func (i *index) addWords(p *goPackage, tree *ast.File) {
	selected := map[*ast.Ident]bool{}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			selected[n.Sel] = true
		case *ast.GenDecl:
			if n.Tok == token.CONST {
				for _, spec := range n.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						i.consts[name.Name] = true
					}
				}
			}
		case *ast.FuncDecl:
			i.nonConst[n.Name.Name] = true
		case *ast.TypeSpec:
			i.nonConst[n.Name.Name] = true
		case *ast.Field:
			for _, name := range n.Names {
				i.nonConst[name.Name] = true
			}
		case *ast.Ident:
			if !selected[n] {
				p.unqualified[n.Name] = true
			}
			i.words[n.Name], p.words[n.Name] = true, true
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				for _, word := range wordRegexp.FindAllString(n.Value, -1) {
					i.words[word] = true
					p.words[word] = true
				}
			}
		}
		return true
	})
}

// has reports whether the package declares a name. With a member, the name is that of a type; without
// one, the name can also be that of a method, which prose calls pkg.Method.
func (p *goPackage) has(name, member string) bool {
	if member != "" {
		return p.members[name][member] || p.openTypes[name] || p.decls[name] && p.members[name] == nil
	}
	if p.decls[name] {
		return true
	}
	for _, members := range p.members {
		if members[name] {
			return true
		}
	}
	return false
}

// find returns the package of an import path, or nil if it belongs to another module.
func (i *index) find(importPath string) *goPackage {
	if p := i.packages[importPath]; p != nil {
		return p
	}
	if first, _, _ := strings.Cut(importPath, "/"); strings.Contains(first, ".") {
		return nil
	}
	if p, known := i.standard[importPath]; known {
		return p
	}
	i.standard[importPath] = nil
	dir := filepath.Join(i.goroot, "src", filepath.FromSlash(importPath))
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		return nil
	}
	p := newPackage(importPath, dir)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		if err := p.addFile(i.fset, file); err != nil {
			return nil // a part of the names would be no help
		}
	}
	i.standard[importPath] = p
	return p
}
