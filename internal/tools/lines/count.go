package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// folders are the rows of the table. A package belongs to the longest of them that contains it. In
// earlier commits, packages of several rows were in runtime itself.
var folders = []string{
	"internal", "hclspec", "plugins", "sdk", "builtin",
	"runtime/core", "runtime/job", "runtime/explain", "runtime/store", "runtime/node", "runtime/scheduler", "runtime/cluster", "runtime/agent", "runtime",
	"cmd/nomad-lite", otherFolders,
}

// otherFolders is the row of the packages that belong to no other row.
const otherFolders = "other"

// testFolders are folders that contain nothing but tests and what only tests use.
var testFolders = []string{"systemtest", "peertest"}

// publicFolders are the folders whose packages other modules can import; privateFolders are exceptions.
var (
	publicFolders  = []string{"hclspec", "plugins", "sdk"}
	privateFolders = []string{"plugins/host"}
)

type count struct{ product, generated, test int }

type row struct {
	folder string
	count
}

// goPackage is a folder with Go files. The paths of folders are relative to the root of the work tree.
type goPackage struct {
	files   []goFile
	imports []string // folders of the module that its files import, without tests
	isMain  bool
}

type goFile struct {
	lines             int
	generated, isTest bool
}

// countTree returns a row for each of folders that has code.
func countTree(root string) ([]row, error) {
	packages, err := readPackages(root)
	if err != nil {
		return nil, err
	}
	product := findProduct(packages)
	rows := make([]row, len(folders))
	for i, folder := range folders {
		rows[i].folder = folder
	}
	for dir, p := range packages {
		c := &rows[slices.Index(folders, findFolder(dir))]
		for _, f := range p.files {
			switch {
			case f.isTest || !product[dir]:
				c.test += f.lines
			case f.generated:
				c.generated += f.lines
			default:
				c.product += f.lines
			}
		}
	}
	return slices.DeleteFunc(rows, func(r row) bool { return r.count == count{} }), nil
}

func findFolder(dir string) string {
	longest := otherFolders
	for _, folder := range folders {
		if isWithin(dir, folder) && (longest == otherFolders || len(folder) > len(longest)) {
			longest = folder
		}
	}
	return longest
}

// findProduct returns the packages that are no test code: programs, public packages, and the
// packages that these import.
func findProduct(packages map[string]goPackage) map[string]bool {
	product := map[string]bool{}
	var add func(dir string)
	add = func(dir string) {
		if p, exists := packages[dir]; exists && !product[dir] {
			product[dir] = true
			for _, imported := range p.imports {
				add(imported)
			}
		}
	}
	for dir, p := range packages {
		elements := strings.Split(dir, "/")
		within := func(other string) bool { return isWithin(dir, other) }
		isPublic := slices.ContainsFunc(publicFolders, within) && !slices.ContainsFunc(privateFolders, within) && !slices.Contains(elements, "internal")
		inTests := slices.ContainsFunc(testFolders, func(name string) bool { return slices.Contains(elements, name) })
		if (p.isMain || isPublic) && !inTests {
			add(dir)
		}
	}
	return product
}

func isWithin(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }

var moduleLine = regexp.MustCompile(`(?m)^module (\S+)`)

// readPackages returns the packages of the module at root, by folder.
func readPackages(root string) (map[string]goPackage, error) {
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	module := moduleLine.FindSubmatch(goMod)
	if module == nil {
		return nil, fmt.Errorf("%s names no module", filepath.Join(root, "go.mod"))
	}
	packages := map[string]goPackage{}
	err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if file != root && isSkipped(file) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(file) != ".go" {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		p := packages[dir]
		if err := p.addFile(file, string(module[1])); err != nil {
			return err
		}
		packages[dir] = p
		return nil
	})
	return packages, err
}

// isSkipped reports whether ./... does not include a folder below the root.
func isSkipped(dir string) bool {
	name := filepath.Base(dir)
	if name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return !errors.Is(err, fs.ErrNotExist)
}

func (p *goPackage) addFile(file, module string) error {
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments|parser.ImportsOnly)
	if err != nil {
		return err
	}
	lines, err := countLines(file, source)
	if err != nil {
		return err
	}
	f := goFile{lines: lines, generated: ast.IsGenerated(tree), isTest: strings.HasSuffix(file, "_test.go")}
	p.files = append(p.files, f)
	if f.isTest {
		return nil
	}
	p.isMain = p.isMain || tree.Name.Name == "main"
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if dir, ok := strings.CutPrefix(path.Clean(imported), module+"/"); ok {
			p.imports = append(p.imports, dir)
		}
	}
	return nil
}

// countLines returns the number of lines that have a token other than a comment. A blank line in a
// string does not count.
func countLines(name string, source []byte) (int, error) {
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(source))
	var errs scanner.ErrorList
	var s scanner.Scanner
	s.Init(file, source, errs.Add, 0)
	text := strings.Split(string(source), "\n")
	lines, last := 0, 0 // last is the last line that was looked at
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return lines, errs.Err()
		}
		if tok == token.SEMICOLON && literal != ";" {
			continue // the scanner has inserted it at the end of the line
		}
		first := file.PositionFor(pos, false).Line
		for line := max(first, last+1); line <= first+strings.Count(literal, "\n"); line++ {
			if strings.TrimSpace(text[line-1]) != "" {
				lines++
			}
			last = line
		}
	}
}
