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

// Serve replies to a GET or HEAD request for a path that starts with Prefix: with a file, or with index.html, whose script
// shows the page for the path. It may be called concurrently.
func Serve(w http.ResponseWriter, r *http.Request) {
	name, isFile := strings.CutPrefix(r.URL.Path, filePrefix)
	if !isFile {
		name = "index.html"
	}
	h := w.Header()
	content, err := fs.ReadFile(embedded, path.Join("static", path.Clean("/"+name)))
	if errors.Is(err, fs.ErrNotExist) {
		// Large files are embedded compressed only. All browsers accept gzip.
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
	// The browser revalidates a file with its ETag at each load, and downloads the file again only if it has changed.
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", etag(content))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func etag(content []byte) string {
	sum := sha256.Sum256(content)
	return `"` + hex.EncodeToString(sum[:8]) + `"`
}
