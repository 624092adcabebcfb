//go:build unix

package ui

import (
	"os"
	"runtime"
	"syscall"
)

func sysProcAttrOfNewSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// desktopBrowserCommand returns the command that opens an address in the browser of the desktop, or nil if there is no
// desktop.
func desktopBrowserCommand() []string {
	switch {
	case runtime.GOOS == "darwin":
		return []string{"open"}
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return nil // xdg-open would start a browser in the terminal
	}
	return []string{"xdg-open"}
}
