package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// properNames are words with a capital inside that are no names of the code.
var properNames = map[string]bool{"gRPC": true, "GitHub": true, "JavaScript": true, "MessagePack": true, "NaN": true, "OpenTelemetry": true, "RefCnt": true}

type finding struct {
	position token.Position
	text     string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s", f.position.Filename, f.position.Line, f.text)
}

// checker checks the comments of one file.
type checker struct {
	*index
	pkg      *goPackage
	file     *goFile
	findings *[]finding
}

// check returns what is wrong in the comments of the work tree, in the order of files and lines.
func (i *index) check() []finding {
	var findings []finding
	for _, importPath := range slices.Sorted(maps.Keys(i.packages)) {
		p := i.packages[importPath]
		for _, f := range p.files {
			if !f.generated {
				checker{i, p, f, &findings}.checkFile()
			}
		}
	}
	slices.SortStableFunc(findings, func(a, b finding) int {
		if byFile := strings.Compare(a.position.Filename, b.position.Filename); byFile != 0 {
			return byFile
		}
		return a.position.Line - b.position.Line
	})
	return slices.Compact(findings)
}

func (c checker) report(pos token.Pos, format string, args ...any) {
	position := c.fset.Position(pos)
	if relative, err := filepath.Rel(c.root, position.Filename); err == nil {
		position.Filename = relative
	}
	position.Offset, position.Column = 0, 0
	*c.findings = append(*c.findings, finding{position, fmt.Sprintf(format, args...)})
}

func (c checker) checkFile() {
	for _, group := range c.file.tree.Comments {
		c.checkFileNames(group)
		c.checkNames(group, !slices.ContainsFunc(c.file.tree.Decls, func(decl ast.Decl) bool {
			return hasCode(decl) && decl.Pos() < group.Pos() && group.End() <= decl.End()
		}))
	}
	c.checkPackageComment()
	for _, decl := range c.file.tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if !strings.HasSuffix(c.file.name, "_test.go") || !testRegexp.MatchString(decl.Name.Name) {
				c.checkStart(decl.Doc, decl.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					c.checkStart(spec.Doc, spec.Name.Name)
					if !decl.Lparen.IsValid() {
						c.checkStart(decl.Doc, spec.Name.Name)
					}
					c.checkFields(spec.Type)
				}
			}
		}
	}
}

// hasCode reports whether a declaration contains statements or values. There, brackets in a comment are no link.
func hasCode(decl ast.Decl) bool {
	general, ok := decl.(*ast.GenDecl)
	return !ok || general.Tok == token.VAR
}

func (c checker) checkFields(expr ast.Expr) {
	ast.Inspect(expr, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok {
			c.checkFieldSubject(field)
		}
		return true
	})
}

var fieldStart = regexp.MustCompile(`^(\w+) is (?:the|a|an|called|true|set|nil)\b`)

// checkFieldSubject reports a comment whose subject is the former name of a field.
func (c checker) checkFieldSubject(field *ast.Field) {
	for _, group := range []*ast.CommentGroup{field.Doc, field.Comment} {
		if start := fieldStart.FindStringSubmatch(group.Text()); start != nil && len(field.Names) > 0 && !c.pkg.words[start[1]] {
			c.report(group.Pos(), "the comment of %s starts with %s", field.Names[0].Name, start[1])
		}
	}
}

var packageStart = regexp.MustCompile(`^Package (\w+)`)

func (c checker) checkPackageComment() {
	doc := c.file.tree.Doc
	if start := packageStart.FindStringSubmatch(doc.Text()); start != nil && start[1] != c.file.tree.Name.Name {
		c.report(doc.Pos(), "the comment of package %s names package %s", c.file.tree.Name.Name, start[1])
	}
}

var goFileName = regexp.MustCompile(`(?:[\w.-]+/)*[\w-]+\.go\b`)

// checkFileNames reports names of files that do not exist. A word with a wildcard names no file.
func (c checker) checkFileNames(group *ast.CommentGroup) {
	for _, comment := range group.List {
		for _, span := range goFileName.FindAllStringIndex(comment.Text, -1) {
			name := comment.Text[span[0]:span[1]]
			before := comment.Text[:span[0]]
			if strings.HasSuffix(before, "*") || strings.HasSuffix(before, "/") || strings.HasSuffix(before, "<") || strings.HasSuffix(before, ".") || c.fileExists(name) {
				continue
			}
			c.report(comment.Pos()+token.Pos(span[0]), "no file %s", name)
		}
	}
}

func (c checker) fileExists(name string) bool {
	for _, dir := range []string{c.pkg.dir, c.root, filepath.Join(c.goroot, "src")} {
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name))); err == nil && (dir == c.pkg.dir || strings.Contains(name, "/")) {
			return true
		}
	}
	return false
}

var (
	linkRegexp = regexp.MustCompile(`\[\*?((?:[\w.-]+/)*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){0,2})\]`)
	// qualified matches pkg.Name and Type.Member, each with a further member.
	qualified = regexp.MustCompile(`[A-Za-z_]\w*\.[A-Z]\w*(?:\.[A-Z]\w*)?`)
	// mixedCase matches words with a capital inside; W3C is no such word.
	mixedCase = regexp.MustCompile(`^[A-Z]?[a-z0-9]*[a-z][a-z0-9]*[A-Z]\w*$`)
	// nilRegexp matches an exported name within a sentence that is nil or not.
	nilRegexp  = regexp.MustCompile(`[a-z,] ([A-Z]\w+) is (?:not )?nil\b`)
	unitRegexp = regexp.MustCompile(`^[kKMGT]i?B$`)
)

// checkNames reports names that do not exist, and also links if the comment can have them.
func (c checker) checkNames(group *ast.CommentGroup, canLink bool) {
	for _, comment := range group.List {
		offset := 0
		for line := range strings.SplitAfterSeq(comment.Text, "\n") {
			if text := strings.TrimPrefix(line, "//"); !strings.HasPrefix(text, "\t") && !strings.HasPrefix(line, "//go:") {
				c.checkLine(comment.Pos()+token.Pos(offset), line, canLink)
			}
			offset += len(line)
		}
	}
}

func (c checker) checkLine(pos token.Pos, line string, canLink bool) {
	rest := []byte(line) // with spaces in place of what was checked
	blank := func(span []int) {
		for i := span[0]; i < span[1]; i++ {
			rest[i] = ' '
		}
	}
	for _, span := range urlRegexp.FindAllIndex(rest, -1) {
		blank(span)
	}
	for _, span := range quotedRegexp.FindAllIndex(rest, -1) {
		blank(span)
	}
	for _, span := range linkRegexp.FindAllSubmatchIndex(rest, -1) {
		link := string(rest[span[2]:span[3]])
		if canLink && isLink(rest, span) && link != strings.ToUpper(link) && !c.linkExists(link) {
			c.report(pos, "[%s] leads to no declaration", link)
		}
		blank(span)
	}
	for _, span := range qualified.FindAllIndex(rest, -1) {
		if name := string(rest[span[0]:span[1]]); isWord(rest, span) && !c.qualifiedExists(name) {
			c.report(pos, "%s does not exist", name)
			blank(span)
		}
	}
	for _, match := range nilRegexp.FindAllSubmatch(rest, -1) {
		if word := string(match[1]); !c.pkg.has(word, "") {
			c.report(pos, "%s is no declaration of the package", word)
		}
	}
	for _, span := range wordRegexp.FindAllIndex(rest, -1) {
		word := string(rest[span[0]:span[1]])
		if isWord(rest, span) && mixedCase.MatchString(word) && !unitRegexp.MatchString(word) && !properNames[word] {
			c.checkWord(pos, word)
		}
	}
}

var (
	urlRegexp    = regexp.MustCompile(`\w+://\S+`)
	quotedRegexp = regexp.MustCompile("\"[^\"]*\"|`[^`]*`")
)

// isWord reports whether a match is not a part of a path or of a longer word.
func isWord(line []byte, span []int) bool {
	if span[0] > 0 && strings.ContainsRune("/.-_$%{<=@", rune(line[span[0]-1])) {
		return false
	}
	return span[1] >= len(line) || !strings.ContainsRune("/-_=", rune(line[span[1]]))
}

// isLink reports whether brackets are a link in the sense of go doc, which requires punctuation or spaces
// around them.
func isLink(line []byte, span []int) bool {
	around := func(b byte) bool {
		return b != '`' && b != '[' && (unicode.IsPunct(rune(b)) || unicode.IsSpace(rune(b)))
	}
	return (span[0] == 0 || around(line[span[0]-1])) && (span[1] >= len(line) || around(line[span[1]]) && line[span[1]] != '(')
}

func (c checker) linkExists(link string) bool {
	dir, link := path.Split(link)
	parts := strings.Split(link, ".")
	member := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	importPath := c.pkg.imports[parts[0]]
	if dir != "" {
		importPath = dir + parts[0]
	} else if c.pkg.decls[parts[0]] && len(parts) < 3 {
		return len(parts) == 1 || c.pkg.has(parts[0], parts[1])
	}
	if importPath == "" {
		return false
	}
	p := c.find(importPath)
	return p == nil || len(parts) == 1 || p.has(parts[1], member(2)) && (p.decls[parts[1]])
}

// checkWord reports a word that is no name of the code. An unexported name must be of the same package,
// and a constant of another package needs the name of the package.
func (c checker) checkWord(pos token.Pos, word string) {
	switch {
	case !c.words[word], !ast.IsExported(word) && !c.pkg.words[word]:
		c.report(pos, "%s is no name of the code", word)
	case ast.IsExported(word) && c.consts[word] && !c.nonConst[word] && !c.pkg.unqualified[word]:
		c.report(pos, "%s is a constant of another package", word)
	}
}

func (c checker) qualifiedExists(name string) bool {
	parts := strings.Split(name, ".")
	member := ""
	if len(parts) == 3 {
		member = parts[2]
	}
	if ast.IsExported(parts[0]) {
		return !c.pkg.decls[parts[0]] || c.pkg.has(parts[0], parts[1])
	}
	if importPath, imported := c.pkg.imports[parts[0]]; imported {
		p := c.find(importPath)
		return p == nil || p.has(parts[1], member)
	}
	if c.pkg.unqualified[parts[0]] {
		return true // it is a variable, a field or a type
	}
	candidates := c.byName[parts[0]]
	return len(candidates) == 0 || slices.ContainsFunc(candidates, func(p *goPackage) bool { return p.has(parts[1], member) })
}

// testRegexp matches functions whose comments state a behaviour, which can start with any name.
var testRegexp = regexp.MustCompile(`^(?:[Tt]est|Example|Fuzz|Benchmark)`)

var firstWords = regexp.MustCompile(`^([A-Za-z_]\w*) (\w+)\b`)

// checkStart reports a comment that starts with the name of something other than what it documents.
func (c checker) checkStart(doc *ast.CommentGroup, name string) {
	start := firstWords.FindStringSubmatch(doc.Text())
	if start == nil || start[1] == name {
		return
	}
	word, next := start[1], start[2]
	isName := unicode.IsLower(rune(word[0])) || mixedCase.MatchString(word) || c.pkg.has(word, "") && strings.HasSuffix(next, "s")
	if isName {
		c.report(doc.Pos(), "the comment of %s starts with %s", name, word)
	}
}
