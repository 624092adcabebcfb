package main

import (
	"bytes"
	"fmt"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	codeTableHeader = regexp.MustCompile(`^\| *Package *\| *Function *\|`)
	codeSpanRegexp  = regexp.MustCompile("`([^`]+)`")
)

// checkTables returns what is wrong in the tables of Markdown documents whose first columns are Package and Function.
func (i *index) checkTables() ([]finding, error) {
	byDir := map[string]*goPackage{}
	for _, p := range i.packages {
		if dir, err := filepath.Rel(i.root, p.dir); err == nil {
			byDir[filepath.ToSlash(dir)] = p
		}
	}
	var findings []finding
	for _, file := range slices.Sorted(maps.Keys(i.paths)) {
		if path.Ext(file) != ".md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(i.root, filepath.FromSlash(file)))
		if err != nil {
			return nil, err
		}
		inTable := false
		for number, line := range bytes.Split(text, []byte("\n")) {
			isHeader := codeTableHeader.Match(line)
			inTable = isHeader || inTable && bytes.HasPrefix(line, []byte("|"))
			if isHeader || !inTable || bytes.HasPrefix(line, []byte("| ---")) {
				continue
			}
			for _, problem := range rowProblems(byDir, string(line)) {
				findings = append(findings, finding{token.Position{Filename: file, Line: number + 1}, problem})
			}
		}
	}
	return findings, nil
}

// rowProblems returns what is wrong in a row whose first cell has the folder of a package, and whose second cell has
// functions, Type.Method or types of this package.
func rowProblems(byDir map[string]*goPackage, row string) []string {
	cells := strings.Split(row, "|")
	if len(cells) < 3 {
		return []string{"a row without a package and a function"}
	}
	packages, names := codeSpanRegexp.FindAllStringSubmatch(cells[1], -1), codeSpanRegexp.FindAllStringSubmatch(cells[2], -1)
	if len(packages) != 1 || len(names) == 0 {
		return []string{"a row without a package and a function"}
	}
	p := byDir[packages[0][1]]
	if p == nil {
		return []string{fmt.Sprintf("no package %s", packages[0][1])}
	}
	var problems []string
	for _, name := range names {
		typ, member, isMember := strings.Cut(name[1], ".")
		if isMember && !p.members[typ][member] || !isMember && !p.decls[typ] {
			problems = append(problems, fmt.Sprintf("package %s has no %s", packages[0][1], name[1]))
		}
	}
	return problems
}
