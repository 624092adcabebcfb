package ui

import "syscall"

func sysProcAttrOfNewSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// desktopBrowserCommand returns the command that opens an address in the browser of the desktop.
func desktopBrowserCommand() []string { return []string{"rundll32", "url.dll,FileProtocolHandler"} }
