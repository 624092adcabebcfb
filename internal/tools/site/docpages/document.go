package docpages

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extensionast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

const (
	docsDir   = "docs"
	indexPath = docsDir + "/README.md"
)

// repository is the documents of a work tree by their paths, which are relative to its root and have slashes.
type repository struct {
	root      string
	documents map[string]*document
}

// document is a parsed Markdown file.
type document struct {
	path     string
	source   []byte
	tree     ast.Node
	headings []heading
	links    []link
	problems []string
}

// heading is a heading with its anchor by the rules of GitHub.
type heading struct {
	level  int
	anchor string
	text   string
}

// link is a link or an image as it is written.
type link struct {
	destination string
	line        int
	isImage     bool
}

// read parses the documents of the work tree at root. It reads neither folders whose names start with a dot nor the folders of built files.
func read(root string) (*repository, error) {
	r := &repository{root: root, documents: map[string]*document{}}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		if entry.IsDir() || path.Ext(name) != ".md" {
			return nil
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		r.documents[name] = parse(name, source)
		return nil
	})
	if err == nil && r.documents[indexPath] == nil {
		err = fmt.Errorf("%s has no index %s", root, indexPath)
	}
	return r, err
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM))

// parse reads a document, and sets the attribute id of each heading.
func parse(name string, source []byte) *document {
	d := &document{path: name, source: source, tree: markdown.Parser().Parse(text.NewReader(source))}
	used := map[string]int{}
	_ = ast.Walk(d.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			title := plainText(n, source)
			anchor := anchorOf(title)
			count := used[anchor]
			used[anchor]++
			if count > 0 {
				anchor = fmt.Sprintf("%s-%d", anchor, count)
			}
			n.SetAttributeString("id", []byte(anchor))
			d.headings = append(d.headings, heading{n.Level, anchor, title})
		case *ast.Link:
			d.links = append(d.links, link{string(n.Destination), d.lineOf(n), false})
		case *ast.Image:
			d.links = append(d.links, link{string(n.Destination), d.lineOf(n), true})
			if plainText(n, source) == "" {
				d.report(n, "an image has no text")
			}
		case *ast.RawHTML:
			if written := string(n.Segments.Value(source)); !strings.HasPrefix(written, "<!--") {
				d.report(n, "HTML in a document is not shown: write %s as code", written)
			}
		case *ast.HTMLBlock:
			if n.HTMLBlockType != ast.HTMLBlockType2 { // a comment
				d.report(n, "HTML in a document is not shown: write it as code")
			}
		case *ast.Paragraph, *ast.TextBlock, *extensionast.TableCell:
			if written := proseText(n, source); strings.Contains(written, "](") {
				d.report(n, "a link is written wrongly: %s", written[max(0, strings.Index(written, "](")-30):])
			}
		}
		return ast.WalkContinue, nil
	})
	if len(d.headings) == 0 || d.headings[0].level != 1 {
		d.problems = append(d.problems, name+": the first heading is not of level 1")
	}
	return d
}

func (d *document) title() string {
	if len(d.headings) == 0 {
		return d.path
	}
	return d.headings[0].text
}

func (d *document) hasAnchor(anchor string) bool {
	return slices.ContainsFunc(d.headings, func(h heading) bool { return h.anchor == anchor })
}

func (d *document) report(n ast.Node, format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf("%s:%d: %s", d.path, d.lineOf(n), fmt.Sprintf(format, args...)))
}

// lineOf returns the number of the line on which a node, or else the block that contains it, starts.
func (d *document) lineOf(n ast.Node) int {
	offset := -1
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if t, isText := n.(*ast.Text); isText && entering {
			offset = t.Segment.Start
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	})
	for ; offset < 0 && n != nil; n = n.Parent() {
		if n.Type() == ast.TypeBlock && n.Lines() != nil && n.Lines().Len() > 0 {
			offset = n.Lines().At(0).Start
		}
	}
	return 1 + bytes.Count(d.source[:max(offset, 0)], []byte("\n"))
}

// anchorOf returns the anchor that GitHub gives to a heading: small letters, without punctuation, with hyphens for spaces.
func anchorOf(title string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == ' ':
			return '-'
		case c == '-', unicode.IsLetter(c), unicode.IsMark(c), unicode.Is(unicode.Nd, c), unicode.Is(unicode.Pc, c):
			return unicode.ToLower(c)
		}
		return -1
	}, title)
}

// plainText returns the text of a node as a reader sees it, with spaces between blocks.
func plainText(n ast.Node, source []byte) string {
	var b strings.Builder
	writeText(&b, n, source, true)
	return strings.TrimSpace(b.String())
}

// proseText returns the text of a node without code.
func proseText(n ast.Node, source []byte) string {
	var b strings.Builder
	writeText(&b, n, source, false)
	return b.String()
}

func writeText(b *strings.Builder, n ast.Node, source []byte, withCode bool) {
	switch n := n.(type) {
	case *ast.Text:
		b.Write(n.Segment.Value(source))
		if n.SoftLineBreak() || n.HardLineBreak() {
			b.WriteByte(' ')
		}
	case *ast.String:
		b.Write(n.Value)
	case *ast.AutoLink:
		b.Write(n.Label(source))
	case *ast.CodeBlock, *ast.FencedCodeBlock:
		if withCode {
			b.Write(n.Lines().Value(source))
		}
	case *ast.CodeSpan:
		if !withCode {
			return
		}
	}
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		writeText(b, child, source, withCode)
	}
	if n.Type() == ast.TypeBlock {
		b.WriteByte(' ')
	}
}

// Check returns what is wrong in the documents of the work tree at root, one line each: a link or an image without its target, an
// anchor that does not exist, HTML, and a page in docs that is more than two clicks from the index.
func Check(root string) ([]string, error) {
	r, err := read(root)
	if err != nil {
		return nil, err
	}
	return r.check(), nil
}

func (r *repository) check() []string {
	var problems []string
	distances := r.distances()
	for _, name := range r.sorted() {
		d := r.documents[name]
		problems = append(problems, d.problems...)
		for _, l := range d.links {
			if problem := r.checkLink(d, l); problem != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: %s", name, l.line, l.destination, problem))
			}
		}
		if distance, reached := distances[name]; strings.HasPrefix(name, docsDir+"/") && (!reached || distance > 2) {
			problems = append(problems, fmt.Sprintf("%s: is not within two clicks from %s: add it there", name, indexPath))
		}
	}
	return problems
}

func (r *repository) sorted() []string {
	var names []string
	for name := range r.documents {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// checkLink returns what is wrong with a link of a document, or "".
func (r *repository) checkLink(from *document, l link) string {
	if isExternal(l.destination) {
		return ""
	}
	target, anchor, err := resolve(from.path, l.destination)
	if err != nil {
		return err.Error()
	}
	info, err := os.Stat(filepath.Join(r.root, filepath.FromSlash(target)))
	switch to := r.documents[target]; {
	case err != nil:
		return "no such file in the repository"
	case l.isImage && (info.IsDir() || !isImageFile(target)):
		return "is not an image"
	case anchor == "":
	case to == nil:
		return "only a document has anchors"
	case !to.hasAnchor(anchor):
		return "no such anchor"
	}
	return ""
}

func isImageFile(name string) bool {
	return slices.Contains([]string{".png", ".svg", ".jpg", ".gif", ".webp"}, path.Ext(name))
}

// isExternal reports whether a destination is an address of the web or of mail.
func isExternal(destination string) bool {
	for _, scheme := range []string{"https:", "http:", "mailto:"} {
		if strings.HasPrefix(destination, scheme) {
			return true
		}
	}
	return false
}

// resolve returns the path in the repository and the anchor of a destination in the document at the path from.
func resolve(from, destination string) (target, anchor string, err error) {
	target, anchor, _ = strings.Cut(destination, "#")
	if target == "" {
		return from, anchor, nil
	}
	if path.IsAbs(target) {
		return "", "", errors.New("is an absolute path")
	}
	target = path.Join(path.Dir(from), target)
	if target == ".." || strings.HasPrefix(target, "../") {
		return "", "", errors.New("is outside the repository")
	}
	return target, anchor, nil
}

// distances returns the number of clicks from the index to each document that links reach.
func (r *repository) distances() map[string]int {
	distances := map[string]int{indexPath: 0}
	for queue := []string{indexPath}; len(queue) > 0; queue = queue[1:] {
		d := r.documents[queue[0]]
		for _, l := range d.links {
			target, _, err := resolve(d.path, l.destination)
			if _, seen := distances[target]; err != nil || isExternal(l.destination) || seen || r.documents[target] == nil {
				continue
			}
			distances[target] = distances[d.path] + 1
			queue = append(queue, target)
		}
	}
	return distances
}
