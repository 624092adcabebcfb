package main

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// systemTests are the folders with tests of the whole program, which take minutes.
var systemTests = []string{"cmd/nomad-lite/systemtest", "cmd/nomad-lite/peertest"}

// goPackage is a package of the main module, as `go list -json` describes it. Dir is relative to
// the root of the repository.
type goPackage struct {
	ImportPath, Dir                    string
	Imports, TestImports, XTestImports []string
}

// plan lists what a change requires to be checked.
type plan struct {
	changed   []string // import paths of packages with a changed file
	importers []string // import paths of the packages that import a changed package and did not change themselves
	removed   []string // import paths of packages that no longer exist
	vetOnly   []string // import paths of system tests that import a changed package and did not change themselves; not in importers
	modules   []string // folders of nested modules with a changed file
	goFiles   []string // changed Go files that exist
	noPackage []string // changed files outside all packages
	all       bool     // true if the dependencies of the module changed
	documents bool     // true if a Markdown file changed
}

// newPlan maps changed files to packages of a module. The paths of files and nestedModules are
// relative to the root of the repository; exists reports whether a file is in the work tree.
//
// A file belongs to the package of its folder, or of the nearest folder above that has one: this
// includes testdata and embedded files. A change of go.mod or go.sum concerns all packages.
func newPlan(modulePath string, packages []goPackage, nestedModules, files []string, exists func(file string) bool) plan {
	byDir := map[string]string{}
	for _, p := range packages {
		byDir[p.Dir] = p.ImportPath
	}
	var p plan
	changed, removed, modules := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, file := range files {
		isGo := strings.HasSuffix(file, ".go")
		if isGo && exists(file) {
			p.goFiles = append(p.goFiles, file)
		}
		if path.Ext(file) == ".md" {
			p.documents = true
		}
		if file == "go.mod" || file == "go.sum" {
			p.all = true
			continue
		}
		if module := containingDir(path.Dir(file), func(dir string) bool { return slices.Contains(nestedModules, dir) }); module != "" {
			modules[module] = true
			continue
		}
		dir := path.Dir(file)
		if isGo && byDir[dir] == "" && !isIgnoredByGo(dir) {
			removed[path.Join(modulePath, dir)] = true
			continue
		}
		dir = containingDir(dir, func(dir string) bool { return byDir[dir] != "" })
		if dir == "" {
			p.noPackage = append(p.noPackage, file)
			continue
		}
		changed[byDir[dir]] = true
	}
	for _, pkg := range packages {
		isSystemTest := slices.ContainsFunc(systemTests, func(dir string) bool { return pkg.Dir == dir || strings.HasPrefix(pkg.Dir, dir+"/") })
		imports := slices.Concat(pkg.Imports, pkg.TestImports, pkg.XTestImports)
		switch {
		case changed[pkg.ImportPath]:
			p.changed = append(p.changed, pkg.ImportPath)
		case !p.all && !slices.ContainsFunc(imports, func(i string) bool { return changed[i] || removed[i] }):
		case isSystemTest:
			p.vetOnly = append(p.vetOnly, pkg.ImportPath)
		default:
			p.importers = append(p.importers, pkg.ImportPath)
		}
	}
	p.removed = slices.Sorted(maps.Keys(removed))
	p.modules = slices.Sorted(maps.Keys(modules))
	return p
}

// containingDir returns dir or the nearest folder above it that matches, or "".
func containingDir(dir string, matches func(dir string) bool) string {
	for ; !matches(dir); dir = path.Dir(dir) {
		if dir == "." {
			return ""
		}
	}
	return dir
}

// isIgnoredByGo reports whether the pattern ./... of the go command excludes a folder.
func isIgnoredByGo(dir string) bool {
	return slices.ContainsFunc(strings.Split(dir, "/"), func(name string) bool {
		return name == "testdata" || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".")
	})
}
