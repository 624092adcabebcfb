package ui

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// browserStartTime is how long openBrowser waits for the exit status of the browser. Some browsers run until their
// window is closed, which counts as success.
const browserStartTime = 2 * time.Second

var errNoBrowser = errors.New("no browser")

// openBrowser opens an address in the browser that BROWSER names, or in the browser of the desktop. It does not wait
// for the end of the browser. It returns errNoBrowser if there is no browser.
func openBrowser(address string) error {
	argv, err := browserCommandLine(address)
	if err != nil {
		return err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = sysProcAttrOfNewSession() // so that Ctrl-C ends the command and not the browser
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start browser: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		if err != nil {
			return fmt.Errorf("browser %s: %w", argv[0], err)
		}
	case <-time.After(browserStartTime):
	}
	return nil
}

// browserCommandLine returns the command line that opens an address. BROWSER is a list of commands, separated by
// colons, in which %s stands for the address; the first command is used.
func browserCommandLine(address string) ([]string, error) {
	first, _, _ := strings.Cut(os.Getenv("BROWSER"), ":")
	if argv := strings.Fields(first); len(argv) > 0 {
		if !strings.Contains(first, "%s") {
			return append(argv, address), nil
		}
		for i := range argv {
			argv[i] = strings.ReplaceAll(argv[i], "%s", address)
		}
		return argv, nil
	}
	argv := desktopBrowserCommand()
	if len(argv) == 0 {
		return nil, errNoBrowser
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, errNoBrowser
	}
	return slices.Concat([]string{path}, argv[1:], []string{address}), nil
}
