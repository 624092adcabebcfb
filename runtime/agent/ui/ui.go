package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var embedded embed.FS

// Prefix is the start of the paths of all pages and files.
const Prefix = "/ui/"

// filePrefix is the start of the paths of files. All other paths are pages.
const filePrefix = Prefix + "static/"

// contentSecurityPolicy permits the files of the page and requests to the agent, nothing else. The page
// creates no element from text, which require-trusted-types-for enforces.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// contentTypes are the types of the files by their extension. The table of package mime depends on files of
// the machine.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Serve replies to a GET or HEAD request for a path that starts with Prefix: with a file, or with the HTML of
// the page, which shows the content for its path itself. It may be called concurrently.
func Serve(w http.ResponseWriter, r *http.Request) {
	name, isFile := strings.CutPrefix(r.URL.Path, filePrefix)
	if !isFile {
		name = "index.html"
	}
	h := w.Header()
	content, err := fs.ReadFile(embedded, path.Join("static", path.Clean("/"+name)))
	if errors.Is(err, fs.ErrNotExist) {
		// A large file is stored compressed. All browsers accept gzip.
		if content, err = fs.ReadFile(embedded, path.Join("static", path.Clean("/"+name+".gz"))); err == nil {
			h.Set("Content-Encoding", "gzip")
		}
	}
	if err != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h.Set("Content-Type", contentTypes[path.Ext(name)])
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	// A browser asks again at each load, and transfers a file only after an upgrade of the agent.
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", etag(content))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func etag(content []byte) string {
	sum := sha256.Sum256(content)
	return `"` + hex.EncodeToString(sum[:8]) + `"`
}
