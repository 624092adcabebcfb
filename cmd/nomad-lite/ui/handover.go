package ui

import (
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
)

// handover is a file that gives a browser an address with a secret. Only processes of this user that see the
// directories of the machine can read it: no task of an isolating driver, and no other account. See DESIGN.md.
type handover struct{ dir string }

// newHandover writes a file that leads to an address. The caller must remove it.
func newHandover(address string) (*handover, error) {
	dir, err := makeHandoverDir()
	if err != nil {
		return nil, fmt.Errorf("give the browser the address of the page: %w; nomad-lite ui -show-url prints it", err)
	}
	h := &handover{dir}
	if err := os.WriteFile(h.path(), []byte(forwardingPage(address)), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("give the browser the address of the page: %w", err), h.remove())
	}
	return h, nil
}

func (h *handover) path() string { return filepath.Join(h.dir, "open.html") }

// address returns the address of the file, which is no secret.
func (h *handover) address() string { return (&url.URL{Scheme: "file", Path: h.path()}).String() }

func (h *handover) remove() error { return os.RemoveAll(h.dir) }

// makeHandoverDir makes a directory that only this user can open.
func makeHandoverDir() (string, error) {
	var failed error
	for _, parent := range handoverParents(snapDir) {
		dir, err := os.MkdirTemp(parent, "nomad-lite-ui-")
		if err == nil {
			return dir, nil
		}
		failed = errors.Join(failed, err)
	}
	return "", failed
}

// snapDir exists on machines whose browsers can be snaps.
const snapDir = "/snap/bin"

// handoverParents returns the directories in which a file for a browser can be made, best first. A browser that is
// installed as a snap can read the directory of the user, and neither its hidden directories nor those of the system.
func handoverParents(snaps string) []string {
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

// forwardingPage returns a page that sends the browser to an address, without an entry in the history of the browser.
func forwardingPage(address string) string {
	address = html.EscapeString(address)
	return `<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url=` + address +
		`"><title>nomad-lite</title><p><a href="` + address + `">Open the page of nomad-lite</a></p></html>
`
}
