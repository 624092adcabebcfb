package ui

import (
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// serve returns the reply to a client that does not accept gzip.
func serve(target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	if len(header) > 0 {
		r.Header.Set(header[0], header[1])
	}
	w := httptest.NewRecorder()
	Serve(w, r, false, Label{})
	return w
}

func TestPathsOfPagesAndFiles(t *testing.T) {
	for _, test := range []struct {
		target      string
		status      int
		contentType string
	}{
		{"/ui/", 200, "text/html; charset=utf-8"},
		{"/ui/jobs/web@default", 200, "text/html; charset=utf-8"},
		{"/ui/variables/var/a.js@default", 200, "text/html; charset=utf-8"},
		{"/ui/static/main.js", 200, "text/javascript; charset=utf-8"},
		{"/ui/static/style.css", 200, "text/css; charset=utf-8"},
		{"/ui/static/icon.svg", 200, "image/svg+xml"},
		{"/ui/static/none.js", 404, ""},
		{"/ui/static/../ui.go", 404, ""},
		{"/ui/static/", 404, ""},
	} {
		w := serve(test.target)
		if w.Code != test.status || w.Header().Get("Content-Type") != test.contentType {
			t.Errorf("%s: %d %q", test.target, w.Code, w.Header().Get("Content-Type"))
		}
		if policy := w.Header().Get("Content-Security-Policy"); test.status == 200 && !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; ") {
			t.Errorf("%s: policy %q", test.target, policy)
		}
	}
}

func TestUnchangedFilesAreNotSentAgain(t *testing.T) {
	if w := serve("/ui/static/main.js", "If-None-Match", serve("/ui/static/main.js").Header().Get("ETag")); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
	}
	if w := serve("/ui/static/main.js", "If-None-Match", serve("/ui/static/api.js").Header().Get("ETag")); w.Code != http.StatusOK {
		t.Errorf("the ETag of another file: %d", w.Code)
	}
}

// TestVendoredFiles checks that the files of other projects are unchanged.
func TestVendoredFiles(t *testing.T) {
	for name, want := range map[string]string{
		"xterm/xterm.js":  "1f991ac3b4b283ebf96e60ae23a00a52765dd3a2e46fa6fdda9f1aab032f7495",
		"xterm/xterm.css": "ba8e6985669488981ccf40c0cefe3aba80722cb6c92de7ad628b0bd717faf2b6",
	} {
		w := serve("/ui/static/vendor/" + name)
		body := io.Reader(w.Body)
		if w.Header().Get("Content-Encoding") == "gzip" {
			uncompressed, err := gzip.NewReader(body)
			if err != nil {
				t.Fatal(err)
			}
			body = uncompressed
		}
		content, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(content)); w.Code != http.StatusOK || got != want {
			t.Errorf("%s: status %d, SHA-256 %s, want %s", name, w.Code, got, want)
		}
	}
	if _, err := fs.Stat(embedded, "static/vendor/xterm/LICENSE"); err != nil {
		t.Error(err)
	}
}

var (
	importPattern = regexp.MustCompile(`(?m)^import (?:\{([^}]*)\}|\* as \w+) from "([^"]+)"|import\("([^"]+)"\)`)
	exportPattern = regexp.MustCompile(`(?m)^export (?:async )?(?:function|const|class|let) (\w+)`)
)

// TestImportsExist also checks that no module is loaded from another host.
func TestImportsExist(t *testing.T) {
	exports := map[string][]string{} // names by module
	texts := map[string]string{}
	err := fs.WalkDir(embedded, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".js" || strings.Contains(name, "/vendor/") {
			return err
		}
		text, err := fs.ReadFile(embedded, name)
		texts[name] = string(text)
		for _, found := range exportPattern.FindAllStringSubmatch(string(text), -1) {
			exports[name] = append(exports[name], found[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range texts {
		for _, found := range importPattern.FindAllStringSubmatch(text, -1) {
			module := path.Join(path.Dir(name), found[2]+found[3])
			if strings.Contains(module, "${") || strings.Contains(module, "/vendor/") {
				continue
			}
			if _, exists := texts[module]; !exists {
				t.Errorf("%s imports %s, which does not exist", name, module)
			}
			for imported := range strings.SplitSeq(found[1], ",") {
				imported, _, _ = strings.Cut(strings.TrimSpace(imported), " as ")
				if imported != "" && !slices.Contains(exports[module], imported) {
					t.Errorf("%s imports %s, which %s does not export", name, imported, module)
				}
			}
		}
	}
}

// TestModulesHaveNoCircleOfImports checks that no module imports itself through others: its variables could be used before
// they are set, and its test would load the whole page.
func TestModulesHaveNoCircleOfImports(t *testing.T) {
	modules := importedModules(firstView, importedModules("main.js", nil))
	if len(modules) < 10 {
		t.Fatalf("%d modules were found", len(modules))
	}
	err := fs.WalkDir(embedded, "static", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".js" || strings.Contains(name, "/vendor/") {
			return err
		}
		name = strings.TrimPrefix(name, "static/")
		for _, imported := range importedModules(name, nil)[1:] {
			if imported == "main.js" { // which loads all modules
				t.Errorf("%s imports main.js", name)
			}
			if slices.Contains(importedModules(imported, nil), name) {
				t.Errorf("%s imports %s, which imports it", name, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEachPageHasItsModule reads the table of pages in main.js.
func TestEachPageHasItsModule(t *testing.T) {
	text, err := fs.ReadFile(embedded, "static/main.js")
	if err != nil {
		t.Fatal(err)
	}
	views := regexp.MustCompile(`(?m)^  \[/.*/, "(\w+)"\],$`).FindAllStringSubmatch(string(text), -1)
	if len(views) < 2 {
		t.Fatalf("%d pages were found in main.js", len(views))
	}
	for _, view := range views {
		if _, err := fs.Stat(embedded, "static/views/"+view[1]+".js"); err != nil {
			t.Error(err)
		}
	}
}

// TestFilesOfAVersionAreKept checks the addresses from which index.html loads the page: their content never changes.
func TestFilesOfAVersionAreKept(t *testing.T) {
	index := serve("/ui/jobs")
	if got := index.Header().Get("Cache-Control"); got != "no-cache" {
		t.Errorf("index.html has Cache-Control %q, want no-cache", got)
	}
	loaded := regexp.MustCompile(`(?:href|src)="(/ui/[^"]+)"`).FindAllStringSubmatch(index.Body.String(), -1)
	var names []string
	for _, found := range loaded {
		w := serve(found[1])
		if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "max-age=31536000, immutable" {
			t.Errorf("%s: status %d, Cache-Control %q", found[1], w.Code, w.Header().Get("Cache-Control"))
		}
		_, name, _ := strings.Cut(strings.TrimPrefix(found[1], versionPrefix), "/")
		names = append(names, name)
		if old := serve(versionPrefix + "0123456789abcdef/" + name); old.Code != http.StatusOK || old.Header().Get("Cache-Control") != "no-cache" || old.Body.String() != w.Body.String() {
			t.Errorf("%s of another version: status %d, Cache-Control %q, %d bytes", name, old.Code, old.Header().Get("Cache-Control"), old.Body.Len())
		}
	}
	for _, name := range []string{"main.js", "dom.js", "views/jobs.js", "livetable.js", "style.css"} {
		if !slices.Contains(names, name) {
			t.Errorf("index.html does not load %s, which the first page needs", name)
		}
	}
	if slices.Contains(names, "views/job.js") {
		t.Error("index.html loads the module of another page, which the first page does not need")
	}
}

func TestFilesAreCompressedForClientsThatAcceptIt(t *testing.T) {
	for _, target := range []string{"/ui/static/main.js", "/ui/", "/ui/static/vendor/xterm/xterm.js"} {
		w := httptest.NewRecorder()
		Serve(w, httptest.NewRequest("GET", target, nil), true, Label{})
		if w.Header().Get("Content-Encoding") != "gzip" || w.Header().Get("ETag") == serve(target).Header().Get("ETag") && !strings.Contains(target, "vendor") {
			t.Errorf("%s: encoding %q, ETag %s", target, w.Header().Get("Content-Encoding"), w.Header().Get("ETag"))
		}
		uncompressed, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(uncompressed)
		if err != nil {
			t.Fatal(err)
		}
		if plain := serve(target); plain.Header().Get("Content-Encoding") == "" && plain.Body.String() != string(content) {
			t.Errorf("%s: the compressed content differs", target)
		}
	}
}

// The label of the configuration is in the page, escaped.
func TestLabel(t *testing.T) {
	get := func(label Label) (body, tag string) {
		w := httptest.NewRecorder()
		Serve(w, httptest.NewRequest("GET", "/ui/jobs", nil), false, label)
		return w.Body.String(), w.Header().Get("ETag")
	}
	plain, plainTag := get(Label{BackgroundColor: "red"})
	labelled, tag := get(Label{Text: "<b>Staging</b>", BackgroundColor: `"red`, TextColor: "#fff"})
	if want := `<p id="label" data-background="&#34;red" data-text="#fff">&lt;b&gt;Staging&lt;/b&gt;</p>`; !strings.Contains(labelled, want) || tag == plainTag {
		t.Errorf("ETag %s, %s without a label; %s", tag, plainTag, labelled)
	}
	if !strings.Contains(plain, emptyLabel) {
		t.Errorf("without a text: %s", plain)
	}
}
