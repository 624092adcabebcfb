package docpages

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
)

//go:embed assets
var assets embed.FS

var pageTemplate = template.Must(template.ParseFS(assets, "assets/page.html"))

// searchIndexFile is a script, because a page that was opened from a folder cannot read another file in any other way.
const searchIndexFile = "search-index.js"

// The sections of the index from which the navigation is made.
const (
	readersSection = "By reader"
	kindsSection   = "All pages"
)

// site is the pages that are built, and those that are still to be built because a page links to them.
type site struct {
	*repository
	version string
	menu    menu
	files   map[string][]byte // by path in the site
	queue   []string          // paths in the repository
	queued  map[string]bool
	index   []indexedPage
}

// menu is the navigation that each page has.
type menu struct {
	readers []menuEntry
	kinds   []menuGroup
}

type menuGroup struct {
	title   string
	entries []menuEntry
}

// menuEntry leads to a path of the repository, or to an anchor of the index if the path is empty.
type menuEntry struct{ title, target, anchor string }

// Build returns the files of the site of the work tree at root, by their paths, which have slashes. The version is shown on each page.
// It returns an error if Check finds a problem in the pages of the site, or if a file cannot be read.
func Build(root, version string) (map[string][]byte, error) {
	r, err := read(root)
	if err != nil {
		return nil, err
	}
	s := &site{repository: r, version: version, files: map[string][]byte{}, queued: map[string]bool{}}
	if s.menu, err = r.readMenu(); err != nil {
		return nil, err
	}
	s.add(indexPath)
	for _, name := range r.sorted() {
		if strings.HasPrefix(name, docsDir+"/") {
			s.add(name)
		}
	}
	var errs []error
	for len(s.queue) > 0 {
		target := s.queue[0]
		s.queue = s.queue[1:]
		errs = append(errs, s.build(target))
	}
	for _, name := range []string{"site.css", "site.js"} {
		content, err := assets.ReadFile("assets/" + name)
		errs = append(errs, err)
		s.files[name] = content
	}
	index, err := json.Marshal(s.index)
	s.files[searchIndexFile] = slices.Concat([]byte("searchIndex = "), index, []byte(";\n"))
	return s.files, errors.Join(append(errs, err)...)
}

// readMenu reads the headings and links of the index.
func (r *repository) readMenu() (menu, error) {
	var m menu
	d := r.documents[indexPath]
	section := ""
	for block := d.tree.FirstChild(); block != nil; block = block.NextSibling() {
		h, isHeading := block.(*ast.Heading)
		switch {
		case isHeading && h.Level == 2:
			section = plainText(h, d.source)
		case isHeading && section == readersSection:
			anchor, _ := h.AttributeString("id")
			m.readers = append(m.readers, menuEntry{title: plainText(h, d.source), anchor: string(anchor.([]byte))})
		case isHeading && section == kindsSection:
			m.kinds = append(m.kinds, menuGroup{title: plainText(h, d.source)})
		case section == kindsSection && len(m.kinds) > 0:
			group := &m.kinds[len(m.kinds)-1]
			_ = ast.Walk(block, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
				if l, isLink := n.(*ast.Link); isLink && entering {
					if target, anchor, err := resolve(indexPath, string(l.Destination)); err == nil {
						group.entries = append(group.entries, menuEntry{plainText(l, d.source), target, anchor})
					}
				}
				return ast.WalkContinue, nil
			})
		}
	}
	if len(m.readers) == 0 || len(m.kinds) == 0 {
		return m, fmt.Errorf("%s lacks the section %q or %q with its headings", indexPath, readersSection, kindsSection)
	}
	return m, nil
}

// add makes a path of the repository a page, and returns the path of the page in the site.
func (s *site) add(target string) string {
	if s.documents[target] == nil && s.documents[path.Join(target, "README.md")] != nil {
		target = path.Join(target, "README.md")
	}
	if !s.queued[target] {
		s.queued[target] = true
		s.queue = append(s.queue, target)
	}
	return s.pathOf(target)
}

// pathOf returns the path in the site of a path in the repository.
func (s *site) pathOf(target string) string {
	page, inDocs := strings.CutPrefix(target, docsDir+"/")
	if !inDocs {
		page = path.Join("repository", target)
	}
	switch name, isDocument := strings.CutSuffix(page, ".md"); {
	case target == indexPath:
		return "index.html"
	case isDocument:
		return name + ".html"
	case isImageFile(target):
		return page
	}
	if info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(target))); err == nil && info.IsDir() {
		return page + "/index.html"
	}
	return page + ".html"
}

// build makes the page of a document, a folder or another file.
func (s *site) build(target string) error {
	if d := s.documents[target]; d != nil {
		return s.buildDocument(d)
	}
	file := filepath.Join(s.root, filepath.FromSlash(target))
	if info, err := os.Stat(file); err != nil {
		return err
	} else if info.IsDir() {
		return s.buildFolder(target, file)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if isImageFile(target) {
		s.files[s.pathOf(target)] = content
		return nil
	}
	if !utf8.Valid(content) {
		return fmt.Errorf("%s: a page links to a file that is neither text nor an image", target)
	}
	page := s.pathOf(target)
	var body bytes.Buffer
	fmt.Fprintf(&body, "<h1>%s</h1>\n", template.HTMLEscapeString(target))
	// Readers use files of docs, such as dashboards and rules. A Go file in dist would be a package of the work tree.
	if strings.HasPrefix(target, docsDir+"/") {
		file := strings.TrimSuffix(page, ".html")
		s.files[file] = content
		fmt.Fprintf(&body, "<p><a href=\"%s\">The file alone</a></p>\n", template.HTMLEscapeString(path.Base(file)))
	}
	writeCode(&body, strings.TrimPrefix(path.Ext(target), "."), string(content))
	return s.write(page, target, target, body.String(), nil)
}

// buildFolder makes a page that lists a folder. Its files become pages, too.
func (s *site) buildFolder(target, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	page := s.pathOf(target)
	var body strings.Builder
	fmt.Fprintf(&body, "<h1>%s</h1>\n<ul>\n", template.HTMLEscapeString(target))
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		link := relative(page, s.add(path.Join(target, name)))
		if e.IsDir() {
			name += "/"
		}
		fmt.Fprintf(&body, "<li><a href=\"%s\">%s</a></li>\n", template.HTMLEscapeString(link), template.HTMLEscapeString(name))
	}
	body.WriteString("</ul>\n")
	return s.write(page, target, target, body.String(), nil)
}

func (s *site) buildDocument(d *document) error {
	page := s.pathOf(d.path)
	var errs []error
	for _, problem := range d.problems {
		errs = append(errs, errors.New(problem))
	}
	for _, l := range d.links {
		if problem := s.checkLink(d, l); problem != "" {
			errs = append(errs, fmt.Errorf("%s:%d: %s: %s", d.path, l.line, l.destination, problem))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_ = ast.Walk(d.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if entering {
			switch n := n.(type) {
			case *ast.Link:
				n.Destination = s.destination(d, page, n.Destination)
			case *ast.Image:
				n.Destination = s.destination(d, page, n.Destination)
			}
		}
		return ast.WalkContinue, nil
	})
	var body bytes.Buffer
	if err := newRenderer().Render(&body, d.source, d.tree); err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	s.index = append(s.index, d.indexed(page))
	return s.write(page, d.path, d.title(), body.String(), d.headings)
}

// destination returns what a link of a document becomes on its page.
func (s *site) destination(d *document, page string, written []byte) []byte {
	if isExternal(string(written)) {
		return written
	}
	target, anchor, err := resolve(d.path, string(written))
	if err != nil {
		return written // buildDocument has reported it
	}
	link := ""
	if target != d.path || anchor == "" {
		link = relative(page, s.add(target))
	}
	if anchor != "" {
		link += "#" + anchor
	}
	return []byte(link)
}

// relative returns the relative address of a page for another page of the site.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}

// The types of the template page.html.
type (
	pageData struct {
		Title, Source, Version, Root string
		Body                         template.HTML
		Headings                     []headingData
		Readers                      []linkData
		Kinds                        []groupData
		IsIndex                      bool
	}
	headingData struct {
		Level        int
		Anchor, Text string
	}
	linkData struct {
		Title, Link string
		IsCurrent   bool
	}
	groupData struct {
		Title   string
		Entries []linkData
	}
)

// write adds the file of a page.
func (s *site) write(page, source, title, body string, headings []heading) error {
	data := pageData{
		Title: title, Source: source, Version: s.version, Root: strings.Repeat("../", strings.Count(page, "/")),
		Body: template.HTML(body), IsIndex: source == indexPath,
	}
	for _, h := range headings {
		if h.level == 2 || h.level == 3 {
			data.Headings = append(data.Headings, headingData{h.level, h.anchor, h.text})
		}
	}
	for _, e := range s.menu.readers {
		data.Readers = append(data.Readers, linkData{e.title, relative(page, s.pathOf(indexPath)) + "#" + e.anchor, false})
	}
	for _, g := range s.menu.kinds {
		group := groupData{Title: g.title}
		for _, e := range g.entries {
			link := relative(page, s.add(e.target))
			if e.anchor != "" {
				link += "#" + e.anchor
			}
			group.Entries = append(group.Entries, linkData{e.title, link, e.target == source && e.anchor == ""})
		}
		data.Kinds = append(data.Kinds, group)
	}
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, "page.html", data); err != nil {
		return err
	}
	s.files[page] = b.Bytes()
	return nil
}

// indexedPage is a page in the index of the search. Other is true for a page outside docs, which follows pages in docs that match
// as well.
type indexedPage struct {
	Link     string           `json:"link"`
	Title    string           `json:"title"`
	Other    bool             `json:"other,omitempty"`
	Sections []indexedSection `json:"sections"`
}

// indexedSection is a heading with the text up to the next heading.
type indexedSection struct {
	Anchor string `json:"anchor"`
	Title  string `json:"title"`
	Text   string `json:"text"`
}

func (d *document) indexed(page string) indexedPage {
	p := indexedPage{Link: page, Title: d.title(), Other: !strings.HasPrefix(d.path, docsDir+"/")}
	section := indexedSection{Title: d.title()}
	for block := d.tree.FirstChild(); block != nil; block = block.NextSibling() {
		if h, isHeading := block.(*ast.Heading); isHeading {
			if section.Text != "" {
				p.Sections = append(p.Sections, section)
			}
			anchor, _ := h.AttributeString("id")
			section = indexedSection{Anchor: string(anchor.([]byte)), Title: plainText(h, d.source)}
			continue
		}
		section.Text = strings.TrimSpace(section.Text + " " + strings.Join(strings.Fields(plainText(block, d.source)), " "))
	}
	if section.Text != "" || len(p.Sections) == 0 {
		p.Sections = append(p.Sections, section)
	}
	return p
}

// IsSite reports whether a folder is a site that Write has written, and can be replaced.
func IsSite(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, searchIndexFile))
	return err == nil
}

// Write replaces the folder dir by the files of a site. An existing folder must be empty or a site.
func Write(dir string, files map[string][]byte) error {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 && !IsSite(dir) {
		return fmt.Errorf("folder %s would be replaced, but is not a site: move it, or name another folder with -out", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
