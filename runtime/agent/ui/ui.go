package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed static
var embedded embed.FS

// Prefix is the start of the paths of all pages and files.
const Prefix = "/ui/"

// filePrefix is the start of the paths of files, and versionPrefix that of their paths with the version of the page, from
// which index.html loads them. All other paths are pages.
const (
	filePrefix    = Prefix + "static/"
	versionPrefix = Prefix + "version/"
)

// contentSecurityPolicy permits only files of the agent and requests to the agent. With require-trusted-types-for the
// browser refuses to create elements from text.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// contentTypes are the MIME types of the files by their extension. Package mime is not used, because its table depends on
// files of the machine.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// compressedSuffix ends the names of large files that are embedded compressed only. All browsers accept gzip.
const compressedSuffix = ".gz"

// indexName is the file that is served for all paths of pages.
const indexName = "index.html"

// site is the embedded files as they are served.
type site struct {
	version string // a hash of all files
	index   []byte // index.html, which loads the files of this version
	files   map[string]servedFile
}

// servedFile is a file without its content, which is read from the embedded files when a client does not accept gzip.
type servedFile struct {
	hash             string
	compressed       []byte
	isCompressedOnly bool // embedded compressed, so that there is no other content
}

// currentSite is built at the first request, because most processes of this program serve no page.
var currentSite = sync.OnceValue(func() *site {
	s := &site{files: map[string]servedFile{}}
	all := sha256.New()
	// Neither the reads nor the compression can fail: the files and the buffers are in memory.
	_ = fs.WalkDir(embedded, "static", func(name string, entry fs.DirEntry, _ error) error {
		if entry.IsDir() {
			return nil
		}
		content, _ := fs.ReadFile(embedded, name)
		name = strings.TrimPrefix(name, "static/")
		sum := sha256.Sum256(content)
		all.Write(sum[:])
		all.Write([]byte(name))
		file := servedFile{hash: hex.EncodeToString(sum[:8])}
		if short, ok := strings.CutSuffix(name, compressedSuffix); ok {
			name, file.compressed, file.isCompressedOnly = short, content, true
		} else {
			file.compressed = compress(content)
		}
		s.files[name] = file
		return nil
	})
	s.version = hex.EncodeToString(all.Sum(nil)[:8])

	index, _ := fs.ReadFile(embedded, "static/"+indexName)
	var links strings.Builder
	for _, name := range importedModules(firstView, importedModules("main.js", nil)) {
		links.WriteString(`<link rel="modulepreload" href="` + filePrefix + name + "\">\n")
	}
	text := strings.Replace(string(index), "<script ", links.String()+"<script ", 1)
	s.index = []byte(strings.ReplaceAll(text, `"`+filePrefix, `"`+versionPrefix+s.version+"/"))
	sum := sha256.Sum256(s.index)
	s.files[indexName] = servedFile{hash: hex.EncodeToString(sum[:8]), compressed: compress(s.index)}
	return s
})

// firstView is the module of the page that is opened first as a rule. Browsers load it and main.js, with all that they
// import, without a wait for the module that imports them.
const firstView = "views/jobs.js"

// importedModules adds a module and all modules that it imports to found.
func importedModules(name string, found []string) []string {
	if slices.Contains(found, name) {
		return found
	}
	found = append(found, name)
	content, _ := fs.ReadFile(embedded, "static/"+name) // an unknown module has no imports; a test checks that all exist
	for line := range strings.Lines(string(content)) {
		if _, imported, ok := strings.Cut(line, ` from "`); ok && strings.HasPrefix(line, "import ") {
			found = importedModules(path.Join(path.Dir(name), strings.TrimRight(imported, "\";\n")), found)
		}
	}
	return found
}

func compress(content []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(content)
	if cmp.Or(err, z.Close()) != nil {
		panic("a buffer rejects a write")
	}
	return b.Bytes()
}

// Label is a text at the top of each page, with CSS colours; an empty one means the page's colour.
type Label struct{ Text, BackgroundColor, TextColor string }

// emptyLabel is the element of index.html for a label.
const emptyLabel = `<p id="label" hidden></p>`

// addTo returns the index with the label.
func (l Label) addTo(index []byte) []byte {
	element := fmt.Sprintf(`<p id="label" data-background="%s" data-text="%s">%s</p>`, html.EscapeString(l.BackgroundColor), html.EscapeString(l.TextColor), html.EscapeString(l.Text))
	return bytes.Replace(index, []byte(emptyLabel), []byte(element), 1)
}

// Serve replies to a GET or HEAD request for a path that starts with Prefix: with a file, or with index.html, whose script
// shows the page for the path, with the label. The reply is compressed if acceptsGzip is set; the caller sets
// Vary. Serve may be called concurrently.
func Serve(w http.ResponseWriter, r *http.Request, acceptsGzip bool, label Label) {
	s := currentSite()
	name, isCurrentVersion := s.fileName(r.URL.Path)
	file, exists := s.files[name]
	if !exists {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", contentTypes[path.Ext(name)])
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	if isCurrentVersion {
		h.Set("Cache-Control", "max-age=31536000, immutable")
	} else {
		// The browser revalidates the file with its ETag at each load, and downloads the file again only if it has changed.
		h.Set("Cache-Control", "no-cache")
	}
	content, tag := file.compressed, file.hash+"-gzip"
	if name == indexName && label.Text != "" {
		content = label.addTo(s.index)
		sum := sha256.Sum256(content)
		tag = hex.EncodeToString(sum[:8])
	} else if acceptsGzip || file.isCompressedOnly {
		h.Set("Content-Encoding", "gzip")
	} else {
		content, tag = s.plain(name), file.hash
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// fileName returns the name of the file for the path of a request, and whether the path has the version of the site, so
// that its content never changes. A tab that has loaded the page from an earlier agent gets the present files.
func (s *site) fileName(requested string) (name string, isCurrentVersion bool) {
	name, isFile := strings.CutPrefix(requested, filePrefix)
	if rest, ok := strings.CutPrefix(requested, versionPrefix); ok {
		var version string
		version, name, _ = strings.Cut(rest, "/")
		isFile, isCurrentVersion = true, version == s.version
	}
	if !isFile {
		return indexName, false
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), isCurrentVersion
}

// plain returns the uncompressed content of a file of the site that is not embedded compressed.
func (s *site) plain(name string) []byte {
	if name == indexName {
		return s.index
	}
	content, _ := fs.ReadFile(embedded, "static/"+name) // the file exists
	return content
}
