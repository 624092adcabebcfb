package ui

import (
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
)

// handoverFile is a temporary HTML file that forwards a browser to an address with a secret. No task of an isolating
// driver and no other account can read the file; see DESIGN.md.
type handoverFile struct{ dir string }

// newHandoverFile writes a file that forwards a browser to an address. The caller must remove the file.
func newHandoverFile(address string) (*handoverFile, error) {
	dir, err := makeHandoverDir()
	if err != nil {
		return nil, fmt.Errorf("give the browser the address of the page: %w; nomad-lite ui -show-url prints it", err)
	}
	h := &handoverFile{dir}
	if err := os.WriteFile(h.path(), []byte(forwardingPage(address)), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("give the browser the address of the page: %w", err), h.remove())
	}
	return h, nil
}

func (h *handoverFile) path() string { return filepath.Join(h.dir, "open.html") }

// fileURL returns the file:// address of the file, which contains no secret.
func (h *handoverFile) fileURL() string { return (&url.URL{Scheme: "file", Path: h.path()}).String() }

func (h *handoverFile) remove() error { return os.RemoveAll(h.dir) }

// makeHandoverDir creates a directory that only this user can open, and returns its path.
func makeHandoverDir() (string, error) {
	var failed error
	for _, parent := range handoverParentDirs(snapDir) {
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

// handoverParentDirs returns the directories in which makeHandoverDir tries to create the directory, best first. A
// browser that is a snap can read the home directory, but neither its hidden directories nor temporary directories of
// the system.
func handoverParentDirs(snaps string) []string {
	parents := []string{os.TempDir()}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		parents = append([]string{dir}, parents...)
	}
	home, err := os.UserHomeDir()
	if _, statErr := os.Stat(snaps); err == nil && statErr == nil {
		parents = append([]string{home}, parents...)
	}
	return parents
}

// forwardingPage returns an HTML page that forwards the browser to an address and leaves no entry in the browser's
// history.
func forwardingPage(address string) string {
	address = html.EscapeString(address)
	return `<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url=` + address +
		`"><title>nomad-lite</title><p><a href="` + address + `">Open the page of nomad-lite</a></p></html>
`
}
