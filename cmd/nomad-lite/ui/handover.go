package ui

import (
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
)

// browserForwardingFile is a temporary HTML file that forwards a browser to an address with a secret. No task of an
// isolating driver and no other account can read the file; see DESIGN.md.
type browserForwardingFile struct{ dir string }

// writeForwardingFile writes a file that forwards a browser to an address. The caller must remove the file.
func writeForwardingFile(secretURL string) (*browserForwardingFile, error) {
	dir, err := makePrivateForwardingDir()
	if err != nil {
		return nil, fmt.Errorf("give the browser the address of the page: %w; nomad-lite ui -show-url prints it", err)
	}
	h := &browserForwardingFile{dir}
	if err := os.WriteFile(h.path(), []byte(newForwardingHTML(secretURL)), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("give the browser the address of the page: %w", err), h.remove())
	}
	return h, nil
}

func (h *browserForwardingFile) path() string { return filepath.Join(h.dir, "open.html") }

// fileURL returns the file:// address of the file, which contains no secret.
func (h *browserForwardingFile) fileURL() string {
	return (&url.URL{Scheme: "file", Path: h.path()}).String()
}

func (h *browserForwardingFile) remove() error { return os.RemoveAll(h.dir) }

// makePrivateForwardingDir creates a directory that only this user can open, and returns its path.
func makePrivateForwardingDir() (string, error) {
	var failed error
	for _, parent := range forwardingParentDirs(snapDir) {
		dir, err := os.MkdirTemp(parent, "nomad-lite-ui-")
		if err == nil {
			return dir, nil
		}
		failed = errors.Join(failed, err)
	}
	return "", failed
}

// snapDir is a directory that exists on machines with snaps, so that the browser can be a snap.
const snapDir = "/snap/bin"

// forwardingParentDirs returns the directories in which makePrivateForwardingDir tries to create the directory, best
// first. A browser that is a snap can read the home directory, but neither its hidden directories nor temporary
// directories of the system.
func forwardingParentDirs(snapInstallDir string) []string {
	parents := []string{os.TempDir()}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		parents = append([]string{dir}, parents...)
	}
	home, err := os.UserHomeDir()
	if _, statErr := os.Stat(snapInstallDir); err == nil && statErr == nil {
		parents = append([]string{home}, parents...)
	}
	return parents
}

// newForwardingHTML returns an HTML page that forwards the browser to an address and leaves no entry in the browser's
// history.
func newForwardingHTML(address string) string {
	address = html.EscapeString(address)
	return `<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url=` + address +
		`"><title>nomad-lite</title><p><a href="` + address + `">Open the page of nomad-lite</a></p></html>
`
}
