package docpages

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dop251/goja"
	"golang.org/x/net/html"
)

const repositoryRoot = "../../../.."

// Each link of each Markdown file works, and the index reaches each page of docs in two clicks.
func TestDocumentsHaveNoBrokenLinks(t *testing.T) {
	problems, err := Check(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

// planted returns the root of a work tree with an index that links to the page docs/page.md, which has the given text.
func planted(t *testing.T, text string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"docs/README.md":     "# Index\n\n## By reader\n\n### Author\n\n## All pages\n\n### How-to\n\n- [Page](page.md)\n",
		"docs/page.md":       text,
		"docs/images/a.png":  "png",
		"docs/rules.yml":     "rules: []\n",
		"source/main.go":     "package main\n",
		"source/DESIGN.md":   "# Design\n\n## A part\n",
		".hidden/ignored.md": "[x](missing.md)\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCheckFindsPlantedProblems(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing": {"# Page\n\n[a](../source/main.go) [b](../source) [c](../source/DESIGN.md#a-part) [d](#page) ![e](images/a.png) <!-- x -->\n\n<!-- y -->\n\nhttps://example.org\n", ""},

		"no such file":              {"# Page\n\ntext\n[a](missing.md)\n", "docs/page.md:4: missing.md: no such file"},
		"no such anchor":            {"# Page\n\n[a](../source/DESIGN.md#other)\n", "../source/DESIGN.md#other: no such anchor"},
		"no such anchor here":       {"# Page\n\n[a](#other)\n", "#other: no such anchor"},
		"anchor of a source file":   {"# Page\n\n[a](../source/main.go#L1)\n", "only a document has anchors"},
		"no such image":             {"# Page\n\n![a](images/b.png)\n", "images/b.png: no such file"},
		"image without text":        {"# Page\n\n![](images/a.png)\n", "an image has no text"},
		"image that is none":        {"# Page\n\n![a](../source/main.go)\n", "is not an image"},
		"absolute path":             {"# Page\n\n[a](/source/main.go)\n", "is an absolute path"},
		"outside":                   {"# Page\n\n[a](../../x)\n", "is outside the repository"},
		"link in a table":           {"# Page\n\n| a |\n| --- |\n| [b](missing.md) |\n", "docs/page.md:5: missing.md: no such file"},
		"link by reference":         {"# Page\n\n[a][x]\n\n[x]: missing.md\n", "missing.md: no such file"},
		"space in a link":           {"# Page\n\n[a](missing file.md)\n", "a link is written wrongly"},
		"HTML":                      {"# Page\n\ntext <b>\n", "docs/page.md:3: HTML in a document is not shown: write <b> as code"},
		"block of HTML":             {"# Page\n\n<details>\ntext\n</details>\n", "HTML in a document is not shown"},
		"no first heading":          {"## Page\n", "the first heading is not of level 1"},
		"link in code is no link":   {"# Page\n\n`[a](missing.md)`\n\n    [a](missing.md)\n", ""},
		"second heading, same name": {"# Page\n\n## A\n\n## A\n\n[a](#a-1)\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			problems, err := Check(planted(t, c.text))
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && len(problems) > 0 || c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0], c.want)) {
				t.Errorf("the problems are %q, want %q", problems, c.want)
			}
		})
	}
}

func TestCheckFindsPagesFarFromTheIndex(t *testing.T) {
	root := planted(t, "# Page\n\n[a](second.md)\n")
	for name, text := range map[string]string{"second": "# Second\n\n[a](third.md)\n", "third": "# Third\n", "alone": "# Alone\n"} {
		if err := os.WriteFile(filepath.Join(root, "docs", name+".md"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	problems, err := Check(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 2 || !strings.HasPrefix(problems[0], "docs/alone.md: ") || !strings.HasPrefix(problems[1], "docs/third.md: ") {
		t.Errorf("the problems are %q, want one of alone.md and one of third.md", problems)
	}
}

func TestAnchorsFollowTheRulesOfGitHub(t *testing.T) {
	for title, want := range map[string]string{
		"Where it listens, and who may ask": "where-it-listens-and-who-may-ask",
		"raw_exec of an agent":              "raw_exec-of-an-agent",
		"0.1.0 (unreleased)":                "010-unreleased",
		"A – b":                             "a--b",
		"Größe":                             "größe",
		"`Driver[T]`: what it is":           "drivert-what-it-is",
	} {
		d := parse("x.md", []byte("# "+title+"\n"))
		if d.headings[0].anchor != want {
			t.Errorf("the anchor of %q is %q, want %q", title, d.headings[0].anchor, want)
		}
	}
}

// buildRepository builds the site of this repository once.
var buildRepository = sync.OnceValues(func() (map[string][]byte, error) { return Build(repositoryRoot, "") })

func builtSite(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := buildRepository()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Each link of the site leads to a file and an element of the site, each page of docs is in it, and no page loads anything from elsewhere.
func TestSiteIsComplete(t *testing.T) {
	files := builtSite(t)
	pages := map[string]*html.Node{}
	ids := map[string]map[string]bool{}
	for name, content := range files {
		if path.Ext(name) != ".html" {
			continue
		}
		page, err := html.Parse(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		pages[name], ids[name] = page, map[string]bool{}
		for n := range page.Descendants() {
			if id := attribute(n, "id"); id != "" {
				if ids[name][id] {
					t.Errorf("%s has two elements with the id %s", name, id)
				}
				ids[name][id] = true
			}
		}
	}
	for name, page := range pages {
		for n := range page.Descendants() {
			for _, problem := range linkProblems(files, ids, name, n) {
				t.Errorf("%s: %s", name, problem)
			}
		}
	}
	if outside := outsideOfCSS.Find(files["site.css"]); outside != nil {
		t.Errorf("site.css loads %s", outside)
	}
	r, err := read(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range r.sorted() {
		if rest, inDocs := strings.CutPrefix(name, "docs/"); inDocs && name != indexPath && pages[strings.TrimSuffix(rest, ".md")+".html"] == nil {
			t.Errorf("the site has no page of %s", name)
		}
	}
}

var outsideOfCSS = regexp.MustCompile(`@import.*|url\(.*`)

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// linkProblems returns what is wrong with the addresses in an element of a page.
func linkProblems(files map[string][]byte, ids map[string]map[string]bool, page string, n *html.Node) []string {
	var problems []string
	if style := attribute(n, "style"); style != "" {
		problems = append(problems, "an element has the style "+style)
	}
	for _, key := range []string{"href", "src", "srcset", "action", "data", "poster"} {
		address := attribute(n, key)
		switch isLink := n.Data == "a" && key == "href"; {
		case address == "" || address == "data:," || isLink && isExternal(address):
			continue
		case isExternal(address) || strings.HasPrefix(address, "/") || strings.Contains(address, ":"):
			problems = append(problems, fmt.Sprintf("<%s> loads %s", n.Data, address))
			continue
		}
		target, anchor, _ := strings.Cut(address, "#")
		if target == "" {
			target = page
		} else {
			target = path.Join(path.Dir(page), target)
		}
		if files[target] == nil {
			problems = append(problems, "no file for "+address)
		} else if anchor != "" && !ids[target][anchor] {
			problems = append(problems, "no element for "+address)
		}
	}
	return problems
}

func TestLinkProblemsAreFound(t *testing.T) {
	files := map[string][]byte{"a/page.html": {}, "other.html": {}}
	ids := map[string]map[string]bool{"a/page.html": {"here": true}, "other.html": {"there": true}}
	for element, want := range map[string]string{
		`<a href="#here">`:                       "",
		`<a href="../other.html#there">`:         "",
		`<a href="https://example.org">`:         "",
		`<a href="other.html">`:                  "no file for other.html",
		`<a href="../other.html#here">`:          "no element for ../other.html#here",
		`<img src="https://example.org/a.png">`:  "<img> loads https://example.org/a.png",
		`<script src="//example.org/a.js">`:      "<script> loads //example.org/a.js",
		`<p style="background:url(http://a.b)">`: "an element has the style",
	} {
		tree, err := html.Parse(strings.NewReader(element))
		if err != nil {
			t.Fatal(err)
		}
		var problems []string
		for n := range tree.Descendants() {
			problems = append(problems, linkProblems(files, ids, "a/page.html", n)...)
		}
		if got := strings.Join(problems, ", "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: the problems are %q, want %q", element, got, want)
		}
	}
}

// question is a line of testdata/questions.txt.
type question struct{ reader, text, words, answer string }

func readQuestions(t *testing.T) []question {
	t.Helper()
	content, err := os.ReadFile("testdata/questions.txt")
	if err != nil {
		t.Fatal(err)
	}
	var questions []question
	reader := ""
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if name, isReader := strings.CutPrefix(line, "## "); isReader {
			reader = name
		} else if line != "" && !strings.HasPrefix(line, "#") {
			fields := strings.Split(line, " | ")
			if len(fields) != 3 || reader == "" {
				t.Fatalf("the line %q is not a question, the words and the answer below a reader", line)
			}
			questions = append(questions, question{reader, fields[0], fields[1], fields[2]})
		}
	}
	return questions
}

// Each reader of the index finds the answers to six questions: at most three clicks from the index, the last of which is in the list of
// sections of the page, and among the first three results of the search.
func TestQuestionsAreAnswered(t *testing.T) {
	files := builtSite(t)
	r, err := read(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.readMenu()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{repository: r}
	distances := r.distances()
	find := startSearch(t, files)
	counts := map[string]int{}
	for _, q := range readQuestions(t) {
		counts[q.reader]++
		name, anchor, _ := strings.Cut(q.answer, "#")
		d := r.documents[name]
		if d == nil || !d.hasAnchor(anchor) {
			t.Errorf("%s: there is no section %s", q.text, q.answer)
			continue
		}
		if clicks := distances[name] + 1; clicks > 3 {
			t.Errorf("%s: %s is %d clicks from the index", q.text, q.answer, clicks)
		}
		results := find(q.words)
		if first := results[:min(3, len(results))]; !slices.Contains(first, s.pathOf(name)) {
			t.Errorf("%s: the search for %q finds %q, and not %s", q.text, q.words, first, s.pathOf(name))
		}
	}
	for _, reader := range m.readers {
		if counts[reader.title] < 6 {
			t.Errorf("the reader %q has %d questions, want six", reader.title, counts[reader.title])
		}
		delete(counts, reader.title)
	}
	if len(counts) > 0 {
		t.Errorf("the index has no readers %q", slices.Sorted(maps.Keys(counts)))
	}
}

// startSearch executes the script of the site, and returns its search, which returns the paths of pages.
func startSearch(t *testing.T, files map[string][]byte) func(words string) []string {
	t.Helper()
	vm := goja.New()
	for _, script := range []string{string(files["site.js"]), string(files[searchIndexFile]), "prepared = prepare(searchIndex)"} {
		if _, err := vm.RunString(script); err != nil {
			t.Fatal(err)
		}
	}
	var find func(string) ([]string, error)
	value, err := vm.RunString(`(query) => search(prepared, query).map((result) => result.link.split("#")[0])`)
	if err == nil {
		err = vm.ExportTo(value, &find)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(words string) []string {
		links, err := find(words)
		if err != nil {
			t.Fatal(err)
		}
		return links
	}
}

// The search finds a word by its forms, by its start, and by the parts of a name.
func TestSearch(t *testing.T) {
	files, err := Build(planted(t, "# Page\n\n## First\n\nThe agent stopped the tasks. kill_timeout\n\n## Second\n\n```hcl job.hcl\ninterval = \"5m\"\n```\n"), "")
	if err != nil {
		t.Fatal(err)
	}
	find := startSearch(t, files)
	for words, isFound := range map[string]bool{
		"stopping task": true, "stop": true, "kill_timeout": true, "timeout": true, "kill_tim": true, "inter": true, "interval": true,
		"unknown": false, "the": false, "": false, "(": false,
	} {
		if results := find(words); slices.Contains(results, "page.html") != isFound {
			t.Errorf("the search for %q finds %q", words, results)
		}
	}
}

func TestBuildFailsForBrokenLinks(t *testing.T) {
	if _, err := Build(planted(t, "# Page\n\n[a](missing.md)\n"), ""); err == nil || !strings.Contains(err.Error(), "docs/page.md:3: missing.md") {
		t.Errorf("the error is %v", err)
	}
}

func TestBuildConvertsLinks(t *testing.T) {
	files, err := Build(planted(t, "# Page\n\n[a](../source/DESIGN.md#a-part) [b](../source) [c](../source/main.go) [d](README.md) ![e](images/a.png) [f](rules.yml)\n"), "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	page := string(files["page.html"])
	for _, want := range []string{
		`href="repository/source/DESIGN.html#a-part"`, `href="repository/source/index.html"`, `href="repository/source/main.go.html"`, `href="index.html"`, `src="images/a.png"`, "nomad-lite 1.2.3",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s:\n%s", want, page)
		}
	}
	if string(files["images/a.png"]) != "png" || string(files["rules.yml"]) != "rules: []\n" {
		t.Error("the image or the file of docs is not copied")
	}
	for name := range files {
		if path.Ext(name) == ".go" {
			t.Errorf("the site has the file %s, which would be a package in dist", name)
		}
	}
}

func TestBuildRendersTables(t *testing.T) {
	for table, want := range map[string]string{
		"| a | b |\n| --- | ---: |\n| c | d |\n": "<thead><tr><th>a</th><th class=\"right\">b</th></tr></thead><tbody><tr><td>c</td><td class=\"right\">d</td></tr></tbody>",
		"| | b |\n| --- | --- |\n| c | d |\n":    "<thead><tr><td></td><th>b</th></tr></thead><tbody><tr><td>c</td><td>d</td></tr></tbody>",
		"| | |\n| --- | --- |\n| c | d |\n":      "<table><tbody><tr><td>c</td><td>d</td></tr></tbody>",
	} {
		files, err := Build(planted(t, "# Page\n\n"+table), "")
		if err != nil {
			t.Fatal(err)
		}
		if page := strings.ReplaceAll(string(files["page.html"]), "\n", ""); !strings.Contains(page, want) {
			t.Errorf("the table\n%sis not %s:\n%s", table, want, page)
		}
	}
}

func TestWriteReplacesOnlySites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	files := map[string][]byte{"a/b.html": []byte("b"), searchIndexFile: []byte("i")}
	if err := Write(dir, files); err != nil {
		t.Fatal(err)
	}
	delete(files, "a/b.html")
	if err := Write(dir, files); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has the files %v of an earlier site, error: %v", entries, err)
	}
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "letter"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(other, files); err == nil {
		t.Error("a folder with other files is replaced")
	}
}
